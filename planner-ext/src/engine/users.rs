//! Statements on users and tokens, and their records in the catalog. CREATE TOKEN has a file of its own, [`tokens`](super::tokens).

use std::sync::Arc;

use terrace_access::{AccessError, NewUser, Principal, Records, Token, UserChange, Users};
use terrace_sql::Privilege;
use terrace_sql::access::AccessCommand;
use terrace_tier_store::{Result as StoreResult, Store};

use super::Engine;
use super::execute::{Execute, Execution};
use super::session::Session;
use crate::error::{Error, ErrorKind, Result};

/// Records of users and tokens, as objects of the catalog.
pub(super) struct CatalogRecords(pub(super) Arc<Store>);

impl Records for CatalogRecords {
    fn put(&self, kind: &str, name: &str, json: &str) -> StoreResult<()> {
        self.0.put_record(kind, name, json)
    }

    fn remove(&self, kind: &str, name: &str) -> StoreResult<()> {
        self.0.remove_record(kind, name).map(drop)
    }

    fn all(&self, kind: &str) -> StoreResult<Vec<(String, String)>> {
        self.0.objects(kind)
    }
}

impl Engine {
    /// Who may use it.
    pub fn users(&self) -> &Arc<Users> {
        &self.users
    }

    /// Once there are users, files may be named only below folders that the configuration names.
    pub(super) fn close_default_roots(&self) {
        if !self.users.is_open() {
            self.files.close_default_roots();
        }
    }
}

impl Execute for AccessCommand {
    /// Changes users and tokens, on a blocking thread: the hash of a password takes its time.
    async fn run(&self, execution: &Execution<'_>) -> Result<u64> {
        let engine = Arc::clone(execution.engine());
        let by = execution.session().principal().clone();
        let command = self.clone();
        let change = move || {
            change_users(engine.users(), &by, command).map_err(access_error)?;
            engine.close_default_roots();
            engine.stop_revoked();
            Ok(0)
        };
        execution.engine().blocking(change).await
    }
}

fn change_users(users: &Users, by: &Principal, command: AccessCommand) -> terrace_access::Result<()> {
    let (changed, if_exists) = match command {
        AccessCommand::CreateUser { name, password, superuser } => {
            (users.create_user(by, &NewUser { name, password, is_superuser: superuser }), false)
        }
        AccessCommand::AlterUser { name, password, superuser } => {
            (users.alter_user(by, &name, &UserChange { password, is_superuser: superuser }), false)
        }
        AccessCommand::DropUser { name, if_exists } => (users.drop_user(by, &name), if_exists),
        AccessCommand::DropToken { name, user, if_exists } => {
            (users.drop_token(by, user.as_ref().unwrap_or(&by.user), &name), if_exists)
        }
    };
    match changed {
        Err(AccessError::Missing { .. }) if if_exists => Ok(()),
        changed => changed,
    }
}

/// A token that has just been made.
pub(crate) struct MadeToken {
    /// What its bearer shows.
    pub(crate) secret: String,
    /// What lists show.
    pub(crate) token: Token,
}

/// The error of a statement.
pub(super) fn access_error(error: AccessError) -> Error {
    Error::new(error.kind(), error.to_string())
}

/// Refuses what a token that is for reading only may not do, and whoever would not be let in any more.
pub(super) fn authorize(session: &Session, privilege: Privilege) -> Result<()> {
    if !session.engine().users().is_current(session.principal()) {
        let message = "the user or the token of this session has changed: log in again";
        return Err(Error::new(ErrorKind::Unauthenticated, message));
    }
    if privilege.changes_server() || privilege == Privilege::Export { refuse_read_only(session) } else { Ok(()) }
}

/// Refuses a token that is for reading only.
pub(super) fn refuse_read_only(session: &Session) -> Result<()> {
    if !session.principal().is_read_only {
        return Ok(());
    }
    let message = "the token of this session is READ ONLY: it may read, and change nothing";
    Err(Error::new(ErrorKind::PermissionDenied, message))
}
