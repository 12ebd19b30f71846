//! Turns a server's settings into the restrictions that will be in force on this kernel.

use std::io;

use super::{Profile, Reach, ResourceLimit, User};
use crate::config;

/// The first Landlock ABI (Linux 6.2) that prevents truncating files outside `write`.
const LANDLOCK_TRUNCATE: u32 = 3;
/// The first Landlock ABI (Linux 6.7) that restricts TCP connections.
const LANDLOCK_TCP: u32 = 4;

/// The restrictions that a kernel supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Whether servers have a guard, which every restriction needs: on Linux.
    pub guard: bool,
    /// The version, such as `6.12.5-amd64`.
    pub release: String,
    /// The ABI version of Landlock, if Landlock is available and turned on.
    pub landlock: Option<u32>,
    /// Whether system calls can be filtered on this processor.
    pub seccomp: bool,
}

impl Kernel {
    pub fn current() -> Self {
        let system = rustix::system::uname();
        Self {
            guard: cfg!(target_os = "linux"),
            release: system.release().to_string_lossy().into_owned(),
            landlock: landlock_abi(),
            seccomp: has_seccomp(),
        }
    }
}

#[cfg(target_os = "linux")]
fn has_seccomp() -> bool {
    rustix::thread::secure_computing_mode().is_ok()
        && seccompiler::TargetArch::try_from(std::env::consts::ARCH).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn has_seccomp() -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn landlock_abi() -> Option<u32> {
    None
}

#[cfg(target_os = "linux")]
fn landlock_abi() -> Option<u32> {
    use landlock::{LandlockStatus, RestrictSelf};

    // An empty request restricts nothing: it only reports the status.
    let status = RestrictSelf::default().no_new_privs(false).apply().ok()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => Some(effective_abi as u32),
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => None,
    }
}

/// The restrictions that a server will run under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names no private directory yet, because each instance gets its own.
    pub profile: Profile,
    /// The restrictions in a few words each, for operators.
    pub in_force: Vec<String>,
    /// Configured restrictions that this kernel lacks, each with the reason. Not empty only with
    /// `sandbox.optional`.
    pub missing: Vec<String>,
}

/// Says why a server cannot be confined here. Retrying is of no use until the settings or the
/// machine change.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("there is no user `{0}` on this machine: `user` must name one")]
    NoSuchUser(String),
    #[error("`{0}` needs Linux: leave it out to start the server without")]
    NeedsLinux(&'static str),
    #[error("the user `{name}` could not be looked up: {source}")]
    UserLookup { name: String, source: io::Error },
    #[error(
        "this kernel cannot confine it as configured: {}; to start it all the same, without that, \
         set `sandbox.optional = true`",
        .0.join("; ")
    )]
    Unsupported(Vec<String>),
}

/// Decides how to confine a server on `kernel`.
pub fn plan(program: &config::Program, kernel: &Kernel) -> Result<Plan, PlanError> {
    let mut plan = Plan { profile: Profile::default(), in_force: vec![], missing: vec![] };
    if kernel.guard {
        plan.in_force = vec!["no_new_privs".to_owned(), "no core dumps".to_owned()];
    } else if program.user.is_some() {
        return Err(PlanError::NeedsLinux("user"));
    } else if program.limits != config::ChildLimits::default() {
        return Err(PlanError::NeedsLinux("limits"));
    } else if program.sandbox.as_ref().is_some_and(|sandbox| !sandbox.optional) {
        return Err(PlanError::NeedsLinux("sandbox"));
    }
    if program.cwd.is_none() {
        plan.in_force.push("private directory".to_owned());
    }
    if let Some(name) = &program.user {
        plan.in_force.push(format!("user {name}"));
        plan.profile.user = find_user(name)?;
    }
    let limits = &program.limits;
    for (limit, value) in [
        (ResourceLimit::Files, limits.files),
        (ResourceLimit::FileSize, limits.file_size),
        (ResourceLimit::Memory, limits.memory),
        (ResourceLimit::Processes, limits.processes),
    ] {
        if let Some(value) = value {
            plan.in_force.push(format!("{} {value}", limit.name()));
            plan.profile.limits.insert(limit, value);
        }
    }
    if let Some(sandbox) = &program.sandbox {
        if !kernel.guard {
            plan.miss("sandbox", "it needs Linux".to_owned());
            return Ok(plan);
        }
        plan.add_landlock(sandbox, kernel);
        plan.add_seccomp(sandbox, kernel);
        if !sandbox.optional && !plan.missing.is_empty() {
            return Err(PlanError::Unsupported(plan.missing));
        }
    }
    Ok(plan)
}

/// Returns the user to become, or `None` if the gateway runs as that user already.
#[cfg(target_os = "linux")]
fn find_user(name: &str) -> Result<Option<User>, PlanError> {
    let lookup = |source| PlanError::UserLookup { name: name.to_owned(), source };
    let user = User::find(name).map_err(lookup)?;
    let user = user.ok_or_else(|| PlanError::NoSuchUser(name.to_owned()))?;
    let is_current = user.is_current().map_err(lookup)?;
    Ok(Some(user).filter(|_| !is_current))
}

#[cfg(not(target_os = "linux"))]
fn find_user(_: &str) -> Result<Option<User>, PlanError> {
    Err(PlanError::NeedsLinux("user"))
}

impl Plan {
    fn add_landlock(&mut self, sandbox: &config::Sandbox, kernel: &Kernel) {
        let release = &kernel.release;
        let Some(abi) = kernel.landlock else {
            let why = format!(
                "Linux {release} has none, or it is turned off at boot; it needs 6.2, or 6.7 for \
                 `connect`, and `landlock` among the kernel's `lsm=`"
            );
            return self.miss("landlock", why);
        };
        self.in_force.push(format!("landlock (abi {abi})"));
        if abi < LANDLOCK_TRUNCATE {
            let why =
                format!("Linux {release} lets it truncate files outside `write`; it needs 6.2");
            self.miss("landlock", why);
        }
        let mut connect = sandbox.connect.clone();
        if connect.is_some() && abi < LANDLOCK_TCP {
            connect = None;
            self.miss("connect", format!("Linux {release} cannot restrict it; it needs 6.7"));
        }
        // Landlock sees `connect` of plain TCP only; seccomp must refuse the other ways.
        if connect.is_some() && !kernel.seccomp {
            self.miss("connect", "without seccomp there are ways around it".to_owned());
        }
        if let Some(ports) = &connect {
            let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
            let ports = if ports.is_empty() { "none".to_owned() } else { ports.join(" ") };
            self.in_force.push(format!("connect {ports}"));
            self.profile.refuse.other_ways_to_connect = kernel.seccomp;
        }
        let (read, write) = (sandbox.read.clone(), sandbox.write.clone());
        self.profile.reach = Some(Reach { read, write, connect });
    }

    fn add_seccomp(&mut self, sandbox: &config::Sandbox, kernel: &Kernel) {
        if sandbox.syscalls && kernel.seccomp {
            self.in_force.push("seccomp".to_owned());
            self.profile.refuse.needless = true;
        } else if sandbox.syscalls {
            let why = format!(
                "Linux {} cannot filter system calls on {}",
                kernel.release,
                std::env::consts::ARCH
            );
            self.miss("seccomp", why);
        }
    }

    fn miss(&mut self, what: &str, why: String) {
        self.missing.push(format!("{what}: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::stdio::sandbox::RefusedCalls;
    use crate::config::{ChildLimits, Program, Sandbox};

    fn kernel(landlock: Option<u32>, seccomp: bool) -> Kernel {
        Kernel { guard: true, release: "5.10.0".to_owned(), landlock, seccomp }
    }

    fn sandboxed(optional: bool) -> Program {
        let connect = Some(vec![443]);
        let sandbox = Sandbox { connect, syscalls: true, optional, ..Sandbox::default() };
        Program { sandbox: Some(sandbox), ..Program::default() }
    }

    #[test]
    fn a_kernel_with_all_features_applies_everything() {
        let limits = ChildLimits { files: Some(1024), ..ChildLimits::default() };
        let program = Program { limits, ..sandboxed(false) };
        let plan = plan(&program, &kernel(Some(5), true)).unwrap();
        assert_eq!(
            plan.in_force.join(", "),
            "no_new_privs, no core dumps, private directory, files 1024, landlock (abi 5), \
             connect 443, seccomp"
        );
        assert!(plan.missing.is_empty());
        assert_eq!(plan.profile.limits, [(ResourceLimit::Files, 1024)].into());
        assert_eq!(plan.profile.reach.unwrap().connect, Some(vec![443]));
        let all = RefusedCalls { needless: true, other_ways_to_connect: true };
        assert_eq!(plan.profile.refuse, all);
    }

    #[test]
    fn a_missing_kernel_feature_is_named_with_the_way_out() {
        let cases: [(_, &[&str]); 5] = [
            (kernel(None, true), &["landlock: Linux 5.10.0 has none", "6.2"]),
            (kernel(Some(2), true), &["landlock: Linux 5.10.0 lets", "connect: ", "6.7"]),
            (kernel(Some(3), true), &["connect: Linux 5.10.0 cannot restrict it"]),
            (kernel(Some(7), false), &["seccomp: Linux 5.10.0", "connect: without seccomp"]),
            (kernel(None, false), &["landlock: ", "seccomp: "]),
        ];
        for (kernel, words) in cases {
            let error = plan(&sandboxed(false), &kernel).unwrap_err().to_string();
            assert!(error.contains("`sandbox.optional = true`"), "{error}");
            for word in words {
                assert!(error.contains(word), "{word} is not in: {error}");
            }
        }
    }

    #[test]
    fn an_optional_sandbox_applies_what_the_kernel_has_and_reports_the_rest() {
        let optional = |kernel| plan(&sandboxed(true), &kernel).unwrap();
        let none = optional(kernel(None, false));
        assert_eq!((none.profile.reach, none.profile.refuse), (None, RefusedCalls::default()));
        assert_eq!(none.missing.len(), 2, "{:?}", none.missing);

        let old = optional(kernel(Some(1), true));
        assert_eq!(old.profile.reach.unwrap().connect, None);
        let needless = RefusedCalls { needless: true, other_ways_to_connect: false };
        assert_eq!(old.profile.refuse, needless);
        assert_eq!(old.missing.len(), 2, "{:?}", old.missing);
    }

    #[test]
    fn without_a_sandbox_every_kernel_suffices() {
        let plan = plan(&Program::default(), &kernel(None, false)).unwrap();
        assert_eq!((plan.profile, plan.missing), (Profile::default(), vec![]));
    }

    #[test]
    fn without_guards_a_server_with_restrictions_is_refused_and_another_is_not() {
        let elsewhere = Kernel { guard: false, ..kernel(None, false) };
        let limits = ChildLimits { files: Some(1024), ..ChildLimits::default() };
        for (program, setting) in [
            (Program { user: Some("root".to_owned()), ..Program::default() }, "`user`"),
            (Program { limits, ..Program::default() }, "`limits`"),
            (sandboxed(false), "`sandbox`"),
        ] {
            let error = plan(&program, &elsewhere).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{setting} needs Linux")), "{error}");
        }
        let free = plan(&Program::default(), &elsewhere).unwrap();
        assert_eq!(free.in_force, ["private directory"]);
        let optional = plan(&sandboxed(true), &elsewhere).unwrap();
        assert_eq!(optional.missing, ["sandbox: it needs Linux"]);
    }

    #[test]
    fn a_user_that_does_not_exist_is_named() {
        let program = Program { user: Some("no-such-user".to_owned()), ..Program::default() };
        let error = plan(&program, &kernel(None, false)).unwrap_err();
        assert!(error.to_string().contains("no user `no-such-user`"), "{error}");
    }
}
