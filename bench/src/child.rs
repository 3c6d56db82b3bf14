//! A side in a process of its own: it loads, reports that it is ready, then answers one request after another.
//!
//! Both ways one JSON object per line: `{"op":"q1"}` in, a [`Sample`] or `{"error":"..."}` out. A side
//! without a request sleeps in a read, so sides that live at the same time do not work at the same time.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cgroup::Cgroup;
use crate::error::{Error, Result};
use crate::row::Sample;
use crate::side::SideSpec;

/// A running side.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: Process,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Its message when it was ready: the time of loading, and its own counts.
    pub ready: Sample,
}

impl Child {
    /// Starts a side of this program.
    pub fn start(name: &str, spec: &SideSpec) -> Result<Self> {
        let program = std::env::current_exe().map_err(Error::io("cannot find this program"))?;
        Self::start_twin(name, &program, spec)
    }

    /// Starts a side of this program under a limit.
    pub fn start_limited(name: &str, limit: Option<&Cgroup>, spec: &SideSpec) -> Result<Self> {
        let Some(limit) = limit else { return Self::start(name, spec) };
        let program = std::env::current_exe().map_err(Error::io("cannot find this program"))?;
        let mut command = limit.start(&program);
        command.arg("side").arg(serde_json::to_string(spec)?);
        Self::start_command(name, command)
    }

    /// Starts a side of another build of this program.
    pub fn start_twin(name: &str, program: &Path, spec: &SideSpec) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("side").arg(serde_json::to_string(spec)?);
        Self::start_command(name, command)
    }

    /// Starts any program that speaks the protocol.
    pub fn start_command(name: &str, mut command: Command) -> Result<Self> {
        let start = Instant::now();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(Error::io(format!("cannot start side '{name}'")))?;
        let input = process.stdin.take();
        let output = process.stdout.take().ok_or_else(|| Error::failed("a side has no output"))?;
        let output = BufReader::new(output);
        let mut child = Self { name: name.to_owned(), process, input, output, ready: Sample::default() };
        child.ready = child.answer("start")?;
        child.ready.ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(child)
    }

    /// Its name in rows.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Asks for one operation and waits for its sample.
    pub fn ask(&mut self, op: &str) -> Result<Sample> {
        let request = serde_json::json!({ "op": op });
        let input = self.input.as_mut().ok_or_else(|| Error::failed("the side is closed"))?;
        let written = writeln!(input, "{request}").and_then(|()| input.flush());
        written.map_err(Error::io(format!("side '{}' is gone", self.name)))?;
        self.answer(op)
    }

    fn answer(&mut self, op: &str) -> Result<Sample> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).map_err(Error::io(format!("side '{}' is gone", self.name)))?;
        if read == 0 {
            return Err(Error::failed(format!("side '{}' ended at '{op}'; its message is above", self.name)));
        }
        let value: serde_json::Value = serde_json::from_str(&line)?;
        match value.get("error").and_then(serde_json::Value::as_str) {
            Some(error) => Err(Error::failed(format!("side '{}', '{op}': {error}", self.name))),
            None => Ok(serde_json::from_value(value)?),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The end of its input ends the process; a process that does not end is killed.
        self.input.take();
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if matches!(self.process.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
