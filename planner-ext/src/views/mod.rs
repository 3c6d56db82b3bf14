//! Hot data views: which rows of a table are promised to lie in its hot chunks, and which queries ask for no others.
//!
//! ```text
//!   definition   a view as it is stored: the words of its SELECT, and when its window was bound last
//!   bound        the same as conditions on a table, its window at a fixed place
//!   condition    the same, evaluated on rows and on the bounds of chunks
//!   run          what chunks are to know of a view: who finds it out, and puts rows together
//!   mining       the views that would pay for the statements that run
//!   registry     the views that can be checked now, by table
//!   coverage     what the chunks of a table know of a view
//!   served       those whose rows chunks know, and what scans did with them
//!   filter       what is known of the rows that a query asks for: analysed once, checked against every view
//!   proof        does every row of a filter fulfil a formula?
//!   facts        what one way to fulfil a filter says of each term
//!   formula      a condition as AND and OR over "term in domain", true for just the rows that it keeps
//!   term         what a domain is about: an expression, or how two of them compare
//!   cast         casts that keep the order of values
//!   domain       a set of values: NULL or not, and spans of an ordered type
//!   point        a value of an ordered type
//! ```
//!
//! The check ("tiering check", Meyer et al., 4.2) is sound: `implied` means that no row can pass the filter and fail the
//! view, in SQL's logic of three values and the order by which the engine compares. What it cannot prove it denies.

mod bound;
mod cast;
mod condition;
mod coverage;
mod definition;
mod domain;
mod facts;
mod filter;
mod formula;
mod mining;
mod point;
mod proof;
mod registry;
mod run;
mod served;
mod term;
#[cfg(test)]
pub(crate) mod tests;
mod weights;

pub(crate) use coverage::Coverage;
pub(crate) use definition::{Definition, Published, USUAL_REFRESH};
pub(crate) use filter::{Filter, Verdict};
pub(crate) use mining::{Action, Asking, Proposal, Volume};
pub use mining::{MiningCounters, MiningMode, MiningOptions};
pub(crate) use registry::{HotViews, Status, Views};
pub(crate) use run::Forecast;
pub use run::RunCounters;
pub use served::ViewTally;
pub(crate) use served::{PublishedView, Served};
