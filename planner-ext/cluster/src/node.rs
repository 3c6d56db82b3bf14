//! The sessions in which a node executes tasks.
//!
//! The library makes a session for each task and reads the plan of the task with the codec that the session names. A
//! session here has the options of the statement, its memory and functions, and the connections to the other nodes; the plan
//! then gets the operators of the engine.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::execution::session_state::SessionState;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{
    ChannelResolver, DistributedExt, WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse, WorkerPlanRewriteHandler,
    WorkerQueryContext, WorkerSessionBuilder,
};

use crate::codec::ScanCodec;
use crate::counts::NodeCounts;
use crate::head::below_exchange;
use crate::options;
use crate::statement::{Statement, Statements};

/// Makes the sessions of the tasks of one node.
#[derive(Clone)]
pub(crate) struct TaskSessions {
    pub(crate) counts: Arc<NodeCounts>,
    pub(crate) statements: Arc<Statements>,
    pub(crate) channels: Arc<dyn ChannelResolver + Send + Sync>,
}

#[async_trait]
impl WorkerSessionBuilder for TaskSessions {
    async fn build_session_state(&self, context: WorkerQueryContext) -> Result<SessionState> {
        let WorkerQueryContext { mut builder, headers } = context;
        let statement = self.statements.find(options::statement(&headers)?)?;
        self.counts.add_task();
        // What the library keeps of the task is in this configuration.
        let mut config: SessionConfig = builder.config().take().unwrap_or_default();
        options::receive(&headers, &mut config)?;
        let codec = ScanCodec::for_node(&statement, Arc::clone(&self.counts));
        let config = config
            .with_distributed_user_codec(codec)
            .with_distributed_channel_resolver(Arc::clone(&self.channels))
            .with_distributed_worker_plan_rewrite_handler(TaskPlan(Arc::downgrade(&statement)));
        statement.host().session_state(config)
    }
}

/// Gives the part of a plan that a task executes the operators of the engine.
struct TaskPlan(Weak<Statement>);

impl WorkerPlanRewriteHandler for TaskPlan {
    fn rewrite_worker_plan(&self, event: WorkerPlanRewriteEvent) -> Result<WorkerPlanRewriteEventResponse> {
        let statement = self
            .0
            .upgrade()
            .ok_or_else(|| exec_datafusion_err!("the statement of a task ended before the task began"))?;
        let plan: Arc<dyn ExecutionPlan> = statement.host().operators(event.plan)?;
        let kept = below_exchange(plan, |part| Ok(statement.keep_part(part)))?;
        Ok(WorkerPlanRewriteEventResponse::new(kept))
    }
}
