//! Seccomp: refuses system calls of a program.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter, sock_filter,
};

use super::RefusedCalls;

/// System calls that no MCP server needs, much like those that containers refuse: other file
/// systems and namespaces, other processes' memory, the kernel itself, its clock and its keys.
const REFUSED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// More such calls, on architectures that have them.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] =
    &[libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_kexec_file_load, libc::SYS_uselib];
/// `kexec_file_load`, which libc does not name for musl on arm64.
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[i64] = &[294];

/// Seccomp cannot see operations that are submitted through io_uring.
const IO_URING: [i64; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// SMC sockets fall back to TCP. They are an address family and, since Linux 6.11, also a protocol
/// of the internet families.
const AF_SMC: i32 = 43;
const IPPROTO_SMC: i32 = 256;

/// The first call number of x32, which repeats all calls under other numbers. No program needs
/// them.
const X32_CALLS: u32 = 0x4000_0000;

/// Compiles the filters that [`enforce`] applies.
pub(super) fn prepare(refuse: RefusedCalls) -> Result<Vec<BpfProgram>, seccompiler::Error> {
    let mut programs = vec![];
    let mut rules = BTreeMap::new();
    if refuse.needless {
        rules.extend(REFUSED.iter().chain(REFUSED_HERE).map(|call| (*call, vec![])));
        rules.insert(libc::SYS_clone, new_namespaces()?);
        // The flags of `clone3` are in memory, where no filter sees them. After ENOSYS libraries
        // use `clone`.
        let clone3 = BTreeMap::from([(libc::SYS_clone3, vec![])]);
        programs.push(program(clone3, libc::ENOSYS)?);
    }
    if refuse.other_ways_to_connect {
        rules.extend(other_ways_to_connect()?);
    }
    if !rules.is_empty() {
        rules.extend(IO_URING.map(|call| (call, vec![])));
        programs.push(program(rules, libc::EPERM)?);
    }
    Ok(programs)
}

fn program(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram, BackendError> {
    let refuse = SeccompAction::Errno(errno.cast_unsigned());
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter: BpfProgram =
        SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()?;
    let mut program = no_x32();
    program.extend(filter);
    Ok(program)
}

/// Answers ENOSYS to call numbers from [`X32_CALLS`] on. Written by hand, because the compiler of
/// filters can only compare single numbers.
fn no_x32() -> BpfProgram {
    let instruction = |code: u32, jf, k| sock_filter { code: code as u16, jt: 0, jf, k };
    let no_such_call = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    vec![
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, X32_CALLS),
        instruction(libc::BPF_RET | libc::BPF_K, 0, no_such_call.into()),
    ]
}

/// Matches `clone` with any flag that creates a namespace.
fn new_namespaces() -> Result<Vec<SeccompRule>, BackendError> {
    let flags = [
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUTS,
    ];
    flags.into_iter().map(|flag| has_flag(0, flag)).collect()
}

/// Matches multipath TCP and SMC, which reach TCP ports, and fast open, which connects by sending.
fn other_ways_to_connect() -> Result<[(i64, Vec<SeccompRule>); 5], BackendError> {
    let sockets = vec![
        rule(0, SeccompCmpOp::Eq, AF_SMC)?,
        rule(2, SeccompCmpOp::Eq, IPPROTO_SMC)?,
        rule(2, SeccompCmpOp::Eq, libc::IPPROTO_MPTCP)?,
    ];
    // TCP_ULP turns a TCP socket into SMC or TLS. The choice is in memory, where no filter sees it.
    // Refusing both is fine, because libraries do without the kernel's TLS.
    let upper_layer = SeccompRule::new(vec![
        condition(1, SeccompCmpOp::Eq, libc::IPPROTO_TCP)?,
        condition(2, SeccompCmpOp::Eq, libc::TCP_ULP)?,
    ])?;
    Ok([
        (libc::SYS_socket, sockets),
        (libc::SYS_setsockopt, vec![upper_layer]),
        (libc::SYS_sendto, vec![has_flag(3, libc::MSG_FASTOPEN)?]),
        (libc::SYS_sendmsg, vec![has_flag(2, libc::MSG_FASTOPEN)?]),
        (libc::SYS_sendmmsg, vec![has_flag(3, libc::MSG_FASTOPEN)?]),
    ])
}

fn has_flag(argument: u8, flag: i32) -> Result<SeccompRule, BackendError> {
    rule(argument, SeccompCmpOp::MaskedEq(flag.cast_unsigned().into()), flag)
}

fn rule(argument: u8, compare: SeccompCmpOp, value: i32) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![condition(argument, compare, value)?])
}

fn condition(
    argument: u8,
    compare: SeccompCmpOp,
    value: i32,
) -> Result<SeccompCondition, BackendError> {
    let value = value.cast_unsigned().into();
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value)
}

/// Applies the filters to this thread and everything that it starts.
pub(super) fn enforce(programs: &[BpfProgram]) -> Result<(), seccompiler::Error> {
    programs.iter().try_for_each(|program| apply_filter(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDLESS: RefusedCalls = RefusedCalls { needless: true, other_ways_to_connect: false };
    const TO_CONNECT: RefusedCalls = RefusedCalls { needless: false, other_ways_to_connect: true };

    /// Architectures, as the kernel passes them to a filter.
    const HERE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
    const I386: u32 = 0x4000_0003;

    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
    const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
    const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const IF_FROM: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

    /// Runs a filter as the kernel does, and returns its verdict.
    fn run(program: &BpfProgram, data: [u32; 16]) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at].clone();
            let jump = |is: bool| usize::from(if is { jt } else { jf });
            at += 1;
            match u32::from(code) {
                LOAD => word = data[k as usize / 4],
                AND => word &= k,
                JUMP => at += k as usize,
                IF_EQUAL => at += jump(word == k),
                IF_FROM => at += jump(word >= k),
                RETURN => return k,
                other => panic!("no filter had this instruction until now: {other:#x}"),
            }
        }
    }

    /// Returns the verdict of all filters together; the strictest counts.
    fn verdict(refuse: RefusedCalls, arch: u32, call: i64, arguments: [i32; 3]) -> SeccompAction {
        let [a, b, c] = arguments.map(i32::cast_unsigned);
        let call = u32::try_from(call).unwrap();
        let data = [call, arch, 0, 0, a, 0, b, 0, c, 0, 0, 0, 0, 0, 0, 0];
        let programs = prepare(refuse).unwrap();
        let verdicts = programs.iter().map(|program| run(program, data));
        match verdicts.min_by_key(|verdict| verdict.cast_signed()).unwrap() {
            libc::SECCOMP_RET_ALLOW => SeccompAction::Allow,
            libc::SECCOMP_RET_KILL_PROCESS => SeccompAction::KillProcess,
            other => SeccompAction::Errno(other ^ libc::SECCOMP_RET_ERRNO),
        }
    }

    fn errno(errno: i32) -> SeccompAction {
        SeccompAction::Errno(errno.cast_unsigned())
    }

    #[test]
    fn new_namespaces_are_refused_whichever_way_and_new_processes_are_not() {
        let says = |call, flags| verdict(NEEDLESS, HERE, call, [flags, 0, 0]);
        assert_eq!(says(libc::SYS_clone, libc::SIGCHLD), SeccompAction::Allow);
        assert_eq!(says(libc::SYS_clone, libc::CLONE_NEWUSER | libc::SIGCHLD), errno(libc::EPERM));
        assert_eq!(says(libc::SYS_clone3, 0), errno(libc::ENOSYS));
    }

    #[test]
    fn x32_and_foreign_call_numbers_are_refused_too() {
        for refuse in [NEEDLESS, TO_CONNECT] {
            let says = |arch, call| verdict(refuse, arch, call, [0, 0, 0]);
            assert_eq!(says(HERE, libc::SYS_read), SeccompAction::Allow);
            let x32 = i64::from(X32_CALLS);
            assert_eq!(says(HERE, x32 + libc::SYS_read), errno(libc::ENOSYS));
            assert_eq!(says(HERE, x32), errno(libc::ENOSYS));
            assert_eq!(says(I386, 3), SeccompAction::KillProcess);
        }
    }

    #[test]
    fn calls_that_bypass_landlock_are_refused_and_no_others() {
        let says = |call, arguments| verdict(TO_CONNECT, HERE, call, arguments);
        let stream = libc::SOCK_STREAM;
        for (call, arguments) in [
            (libc::SYS_socket, [AF_SMC, stream, 0]),
            (libc::SYS_socket, [libc::AF_INET, stream, IPPROTO_SMC]),
            (libc::SYS_socket, [libc::AF_INET6, stream, libc::IPPROTO_MPTCP]),
            (libc::SYS_setsockopt, [3, libc::IPPROTO_TCP, libc::TCP_ULP]),
            (libc::SYS_io_uring_setup, [0, 0, 0]),
        ] {
            assert_eq!(says(call, arguments), errno(libc::EPERM), "{call} {arguments:?}");
        }
        for (call, arguments) in [
            (libc::SYS_socket, [libc::AF_INET, stream, libc::IPPROTO_TCP]),
            (libc::SYS_socket, [libc::AF_UNIX, stream, 0]),
            (libc::SYS_setsockopt, [3, libc::IPPROTO_TCP, libc::TCP_NODELAY]),
            (libc::SYS_setsockopt, [3, libc::SOL_SOCKET, libc::TCP_ULP]),
            (libc::SYS_connect, [3, 0, 0]),
        ] {
            assert_eq!(says(call, arguments), SeccompAction::Allow, "{call} {arguments:?}");
        }
    }
}
