//! Tasks that DataFusion spawns for a statement are charged to it, and stay in its span of the log.

use std::any::Any;
use std::sync::Once;

use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use futures::FutureExt;
use futures::future::BoxFuture;
use terrace_heap::HeapAccount;
use tracing::{Instrument, Span};

type Output = Box<dyn Any + Send>;

/// Passes the account and the span of the task that spawns on to the task that it spawns.
struct SameStatement;

impl JoinSetTracer for SameStatement {
    fn trace_future(&self, future: BoxFuture<'static, Output>) -> BoxFuture<'static, Output> {
        let future = match HeapAccount::current() {
            Some(account) => account.charge(future).boxed(),
            None => future,
        };
        let span = Span::current();
        if span.is_none() { future } else { future.instrument(span).boxed() }
    }

    fn trace_block(&self, work: Box<dyn FnOnce() -> Output + Send>) -> Box<dyn FnOnce() -> Output + Send> {
        let work: Box<dyn FnOnce() -> Output + Send> = match HeapAccount::current() {
            Some(account) => Box::new(move || account.charge_call(work)),
            None => work,
        };
        let span = Span::current();
        if span.is_none() { work } else { Box::new(move || span.in_scope(work)) }
    }
}

/// Charges the tasks that DataFusion spawns from now on, in the whole process.
pub(in crate::engine) fn charge_spawned_tasks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if set_join_set_tracer(&SameStatement).is_err() {
            tracing::warn!("another tracer follows DataFusion's tasks: their memory is not charged to statements");
        }
    });
}
