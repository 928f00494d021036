//! How large the services are, and what that takes of the servers.

/// Sessions that all processes together may want of one server: each is a process there, and a few MB of memory.
const MOST: u32 = 1_000;
/// The drill's own sessions, the lab's, and what superusers keep for themselves.
const BESIDES: u32 = 20;
/// `max_connections` where the drill's own cluster needs no more.
const USUAL: u32 = 100;

/// The processes of a drill.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    /// Processes of each kind.
    pub(crate) instances: u16,
    /// Workers of each process.
    pub(crate) workers: u16,
    /// Kinds: pgfollow, and the plain pool unless it is left out.
    pub(crate) kinds: u32,
}

impl Fleet {
    /// Sessions at one server when all are there: one for each worker, and one of each process to watch the server.
    pub(crate) fn sessions(&self) -> u32 {
        self.kinds * u32::from(self.instances) * (u32::from(self.workers) + 1)
    }

    /// # Errors
    /// More than one machine can play.
    pub(crate) fn check(&self) -> Result<(), String> {
        let sessions = self.sessions();
        if sessions > MOST {
            return Err(format!(
                "--instances {} with --workers {} want {sessions} sessions of one server, and the drill goes up to {MOST}: \
                 take fewer, or leave the plain pool out (--no-plain)",
                self.instances, self.workers
            ));
        }
        Ok(())
    }

    /// Settings of the drill's own servers: room for all, and each login and its end in the log, where they are counted.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let room = (self.sessions() + BESIDES).max(USUAL);
        let settings = [
            ("max_connections", room.to_string()),
            ("log_connections", "on".to_owned()),
            ("log_disconnections", "on".to_owned()),
            ("log_line_prefix", super::logins::PREFIX.to_owned()),
        ];
        settings.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Whether a server of the user's has room: `free` sessions besides those that are there and those kept for
    /// superusers.
    ///
    /// # Errors
    /// It hasn't.
    pub(crate) fn fits(&self, max_connections: i64, free: i64) -> Result<(), String> {
        let sessions = i64::from(self.sessions());
        if sessions <= free {
            return Ok(());
        }
        Err(format!(
            "the drill wants {sessions} sessions, and the server has room for {} more (max_connections = \
             {max_connections}): raise max_connections on all servers, or take fewer --instances or --workers, or leave the \
             plain pool out (--no-plain)",
            free.max(0)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_room_for_the_whole_fleet_and_a_fleet_beyond_reason_is_refused() {
        let fleet = |instances, workers, kinds| Fleet { instances, workers, kinds };
        let room = |f: Fleet| f.settings().into_iter().find(|(n, _)| n == "max_connections").map(|(_, v)| v);
        assert_eq!(room(fleet(1, 8, 2)).as_deref(), Some("100"));
        assert_eq!(room(fleet(16, 8, 2)).as_deref(), Some("308"));
        assert!(fleet(55, 8, 2).check().is_ok());
        assert!(fleet(56, 8, 2).check().is_err_and(|e| e.contains("--no-plain")));
        assert!(fleet(56, 8, 1).check().is_ok());
    }

    #[test]
    fn a_server_without_room_is_told_with_its_parameter_and_the_remedy() {
        let fleet = Fleet { instances: 8, workers: 8, kinds: 2 };
        assert!(fleet.fits(200, 144).is_ok());
        let why = fleet.fits(150, 143).unwrap_err();
        assert!(why.contains("144") && why.contains("143 more (max_connections = 150)"), "{why}");
        assert!(why.contains("raise max_connections") && why.contains("fewer --instances"), "{why}");
    }
}
