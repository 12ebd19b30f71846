//! The user that a server runs as.

#[cfg(target_os = "linux")]
use std::ffi::CString;
#[cfg(target_os = "linux")]
use std::io;
use std::path::PathBuf;

#[cfg(target_os = "linux")]
use nix::unistd::{self, getgrouplist};
#[cfg(target_os = "linux")]
use rustix::process::{Gid, Uid, getgid, getgroups, getuid};
#[cfg(target_os = "linux")]
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    /// All groups of the user, the primary one included.
    groups: Vec<u32>,
    pub home: PathBuf,
}

#[cfg(target_os = "linux")]
impl User {
    pub(super) fn find(name: &str) -> io::Result<Option<Self>> {
        let Some(user) = unistd::User::from_name(name)? else { return Ok(None) };
        let groups = getgrouplist(&CString::new(name)?, user.gid)?;
        Ok(Some(Self {
            name: user.name,
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.iter().map(|group| group.as_raw()).collect(),
            home: user.dir,
        }))
    }

    /// Returns whether this process runs as this user already. The process may lack some of the
    /// user's groups, as in containers, but must have no others.
    pub(super) fn is_current(&self) -> io::Result<bool> {
        let groups: Vec<u32> = getgroups()?.into_iter().map(Gid::as_raw).collect();
        Ok(self.has_all_of(getuid().as_raw(), getgid().as_raw(), &groups))
    }

    /// Returns whether the user has every right of a process with these ids.
    fn has_all_of(&self, uid: u32, gid: u32, groups: &[u32]) -> bool {
        let is_own = |group: &u32| *group == self.gid || self.groups.contains(group);
        (uid, gid) == (self.uid, self.gid) && groups.iter().all(is_own)
    }

    /// Becomes this user, irrevocably. The process must have one thread only, because the kernel
    /// changes the user of a thread and not of a process.
    pub(super) fn switch_to(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        Ok(set_thread_res_uid(uid, uid, uid)?)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name() {
        let root = User::find("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0), "{root:?}");
        assert_eq!(User::find("no-such-user").unwrap(), None);
    }

    #[test]
    fn a_process_that_is_in_other_groups_too_does_not_run_as_the_user() {
        let root = User::find("root").unwrap().unwrap();
        let user = User { uid: 7, gid: 8, groups: vec![8, 9], ..root };
        assert!(user.has_all_of(7, 8, &[8, 9]) && user.has_all_of(7, 8, &[9]));
        assert!(user.has_all_of(7, 8, &[]));
        assert!(!user.has_all_of(7, 8, &[8, 9, 10]), "more than the user has");
        assert!(!user.has_all_of(6, 8, &[]) && !user.has_all_of(7, 9, &[]));
    }
}
