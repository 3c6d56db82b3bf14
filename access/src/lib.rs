//! Who may use a server: users with passwords, tokens, and tokens of an issuer (JWT).
//!
//! [`Users`] keeps them in memory and in the catalog ([`Records`]). Flight and HTTP ask it for whom a call is made; SQL
//! statements and the command line change it. A server without any user is open to everybody who reaches it.
//!
//! - `error`: errors of changes and of logins
//! - `issuer`: the issuer whose tokens are taken: its keys, and tokens that were right
//! - `jwk`: the public keys of an issuer
//! - `jwt`: which tokens of an issuer are right, and whom they name
//! - `password`: hashes of passwords
//! - `principal`: for whom a call is made
//! - `record`: what is stored of users and tokens
//! - `secret`: random secrets, and their fingerprints
//! - `remembered`: passwords that were right a moment ago
//! - `signatures`: signatures of JWT
//! - `users`: all users and tokens of a server

mod error;
mod issuer;
mod jwk;
mod jwt;
mod password;
mod principal;
mod record;
mod remembered;
mod secret;
mod signatures;
mod users;

pub use error::{AccessError, LoginError, Result};
pub use issuer::{Issuer, KeyFetch, KeySource};
pub use jwt::{JwtAlgorithms, JwtRules};
pub use principal::{ANONYMOUS, Principal};
pub use record::{MemoryRecords, Records};
pub use secret::random_secret;
pub use users::{NewToken, NewUser, Owner, Token, User, UserChange, Users};
