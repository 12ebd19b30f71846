//! Another user to run a server as.

use std::ffi::CString;
use std::io;
use std::path::PathBuf;

use nix::unistd::{self, getgrouplist};
use rustix::process::{Gid, Uid, getgid, getgroups, getuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde::{Deserialize, Serialize};

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// All groups it is in.
    groups: Vec<u32>,
    /// Its home directory.
    pub home: PathBuf,
}

impl User {
    /// Looks a user up by name; `None` if there is no such user.
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

    /// Whether this process runs as this user already. It may be in fewer groups, as containers are, but in none that the
    /// user is not in.
    pub(super) fn is_current(&self) -> io::Result<bool> {
        let groups: Vec<u32> = getgroups()?.into_iter().map(Gid::as_raw).collect();
        Ok(self.has_all_of(getuid().as_raw(), getgid().as_raw(), &groups))
    }

    /// Whether a process with these has no right that the user has not.
    fn has_all_of(&self, uid: u32, gid: u32, groups: &[u32]) -> bool {
        let is_own = |group: &u32| *group == self.gid || self.groups.contains(group);
        (uid, gid) == (self.uid, self.gid) && groups.iter().all(is_own)
    }

    /// Becomes this user, for good. The process must have one thread only: the system changes threads, not processes.
    pub(super) fn become_it(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        Ok(set_thread_res_uid(uid, uid, uid)?)
    }
}

#[cfg(test)]
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
