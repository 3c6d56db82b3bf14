//! SQL text to a [`Command`]: what a statement is, which objects it names, which right it needs, whether it returns rows.
//!
//! All of this is known before the statement is planned. The crate knows the model and DataFusion's parser, and neither
//! the store, nor the scan, nor the engine, which plans and runs commands.
//!
//! From text to a command:
//!
//! - [`dialect`]: the SQL dialect
//! - [`parse`](mod@parse): the statements of DataFusion's grammar, and COPY FROM and OPTIMIZE; refuses statements that are not
//!   supported
//! - [`prepare`]: PREPARE, EXECUTE and DEALLOCATE
//! - [`rewrite`]: UPDATE, DELETE and MERGE as queries over row positions
//! - [`rule`]: placement rules
//! - [`tier`]: ALTER SYSTEM .. TIER
//! - [`tiering_commands`]: queries and orders on placement, commands to the tiering loop
//! - [`hot_view`]: statements on hot views
//! - [`access`]: statements on users and tokens
//! - [`grant`]: statements on roles, rights and owners
//! - [`policy`]: statements on policies on rows
//! - [`grantable`]: what rights are held on, as statements write it
//! - [`view_options`]: options of hot views
//! - [`workload_group`]: statements on workload groups
//! - [`option_list`]: options in parentheses
//!
//! What a command consists of:
//!
//! - [`command`]: commands, and the parts of a statement by its kind
//! - [`kind`]: kinds of statements, and the rights that they need
//! - [`objects`]: the tables, views and schemas that a statement names
//! - [`names`]: names as written, and names as SQL text
//!
//! Syntax trees and texts:
//!
//! - [`ast_nodes`]: builds small parts of syntax trees
//! - [`source_text`]: cuts texts of views and defaults out of statements, for the catalog
//! - [`defaults`]: syntax trees of default values
//! - [`secrets`]: texts of statements without passwords
//! - [`masking`]: texts of statements without literals

pub mod access;
pub mod ast_nodes;
pub mod command;
pub mod defaults;
pub mod dialect;
#[cfg(test)]
mod fuzz_tests;
pub mod grant;
pub mod grantable;
pub mod hot_view;
pub mod kind;
pub mod masking;
pub mod names;
pub mod objects;
mod option_list;
pub mod parse;
pub mod policy;
pub mod prepare;
pub mod rewrite;
pub mod rule;
pub mod secrets;
pub mod source_text;
#[cfg(test)]
mod tests;
pub mod tier;
pub mod tiering_commands;
pub mod view_options;
pub mod workload_group;

pub use command::Command;
pub use kind::{Privilege, StatementKind};
pub use names::{NameParts, last_name, normalized, qualified, quoted_name, quoted_text};
pub use objects::{ObjectKind, ObjectRef, Use};
pub use parse::parse;
/// Schema of the system tables.
pub use terrace_model::SYSTEM_SCHEMA;

/// Name of the one catalog.
pub const CATALOG: &str = "terrace";
/// Schema of names without one.
pub const DEFAULT_SCHEMA: &str = "public";
/// Schema of the tables that describe the catalog in the SQL standard.
pub const INFORMATION_SCHEMA: &str = "information_schema";
