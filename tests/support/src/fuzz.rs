//! Fuzz harnesses: decoders that must take any bytes, within a second and 64 MiB.
//!
//! A harness is a plain test: `fuzz!("name", Inputs::stateless(2_000, 1_000_000), examples, decode)`. `decode` gets bytes
//! and says whether they were valid. Inputs are those of the folder `__fuzz__/<test>/corpus` beside the file of the test, and random
//! ones: in a usual run the same each time, so that it passes or fails for what was changed and not by chance; in a deep run
//! those that [`bolero`] draws, which also shrinks one that fails. Each input is decoded as it is, and once more as a recipe for
//! damage to one of the examples, which are valid: random bytes alone seldom come past the first check.
//!
//! ```text
//! cargo test ..                             some seconds in all
//! TERRACE_TEST_DEPTH=deep ..                the numbers of figure R3, over hours, with progress on standard error
//! TERRACE_TEST_FUZZ_INPUTS=50000 ..         this many inputs for each harness
//! TERRACE_TEST_FUZZ_ALONE=1 ..              what the process holds is compared, too: one harness in it, see `tests/fuzz.sh`
//! BOLERO_RANDOM_SEED=.. ..                  the input that a failure named comes first
//! ```
//!
//! The binary must count what it allocates ([`terrace_heap::CountingAllocator`]); a harness fails where it does not.
#![allow(clippy::panic, clippy::disallowed_methods)]

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use bolero;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use terrace_heap::HeapAccount;

use crate::depth::{by_depth, is_deep};
use crate::residence::Residence;
use crate::seeds::setting;

/// Time that an input may take.
pub const MOST_TIME: Duration = Duration::from_secs(1);
/// Bytes that may be allocated for an input at one time.
pub const MOST_BYTES: u64 = 64 << 20;
/// Bytes of the longest input that is drawn.
pub const MOST_INPUT_BYTES: usize = 512;
/// Times that an input is decoded which took too long: others may have had the processor.
const TRIES: usize = 3;
/// Time after which an input is taken to have no end.
const HANG: Duration = Duration::from_secs(60);
/// Bytes that all inputs of a stateless harness may leave allocated, after those at the begin, which fill caches.
const MOST_LEFT_BYTES: u64 = 8 << 20;
/// Time between two messages on the progress of a long run.
const PROGRESS: Duration = Duration::from_secs(60);
/// Bytes of a recipe for one damage.
const STEP_BYTES: usize = 6;
/// Most damages to one example.
const MOST_STEPS: u8 = 4;
/// Numbers that lengths and offsets are replaced by.
const NUMBERS: [u64; 16] = [
    0,
    1,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    1 << 48,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 7,
    u64::MAX,
];

/// How many inputs a harness takes.
#[derive(Debug, Clone, Copy)]
pub struct Inputs {
    count: usize,
    /// Whether they are drawn anew in each run.
    are_drawn: bool,
    is_stateless: bool,
}

impl Inputs {
    /// For code that keeps nothing between two inputs: this many in a usual and in a deep run.
    pub fn stateless(default: usize, deep: usize) -> Self {
        Self { is_stateless: true, ..Self::stateful(default, deep) }
    }

    /// For code that may keep something, such as sessions, within bounds of its own.
    pub fn stateful(default: usize, deep: usize) -> Self {
        let asked = setting("TERRACE_TEST_FUZZ_INPUTS").and_then(|count| usize::try_from(count).ok());
        let count = asked.unwrap_or_else(|| by_depth(default, deep));
        Self { count, are_drawn: is_deep() || asked.is_some(), is_stateless: false }
    }
}

/// Runs a harness: its name, its [`Inputs`], examples that `decode` finds valid, and `decode`.
#[macro_export]
macro_rules! fuzz {
    ($name:expr, $inputs:expr, $examples:expr, $decode:expr) => {{
        let harness = $crate::fuzz::Harness::new($name, $inputs, $examples, $decode);
        harness.accept_usual_inputs();
        let shared = ::std::panic::AssertUnwindSafe(&harness);
        $crate::fuzz::bolero::check!()
            .with_iterations(harness.drawn_count())
            .with_max_len($crate::fuzz::MOST_INPUT_BYTES)
            .for_each(|input: &[u8]| shared.accept(input));
        harness.finish();
    }};
}

/// Whether bytes were valid.
type Decode<'a> = Box<dyn Fn(&[u8]) -> bool + 'a>;

/// A decoder, its examples, and what was measured so far.
pub struct Harness<'a> {
    name: &'static str,
    inputs: Inputs,
    examples: Vec<Vec<u8>>,
    decode: Decode<'a>,
    watch: Watch,
    /// A file that has the latest input, for runs so long that they cannot be repeated: an abort leaves nothing else.
    latest: Option<File>,
    measured: RefCell<Measured>,
    /// When progress was told last.
    told: Cell<Instant>,
}

struct Measured {
    begun: Instant,
    inputs: usize,
    valid: usize,
    longest: Duration,
    largest_bytes: u64,
    left_bytes: u64,
    /// Whether the first tenth of the inputs is over, which fills caches.
    is_warm: bool,
    /// What the process held then.
    residence: Option<Residence>,
}

impl<'a> Harness<'a> {
    /// Starts a harness, and checks that its examples are valid.
    pub fn new(
        name: &'static str,
        inputs: Inputs,
        examples: Vec<Vec<u8>>,
        decode: impl Fn(&[u8]) -> bool + 'a,
    ) -> Self {
        let account = HeapAccount::new();
        drop(account.charge_call(|| black_box(Vec::<u8>::with_capacity(1 << 20))));
        assert!(account.peak_bytes() >= 1 << 20, "the binary of {name} does not count what it allocates");
        let measured = Measured {
            begun: Instant::now(),
            inputs: 0,
            valid: 0,
            longest: Duration::ZERO,
            largest_bytes: 0,
            left_bytes: 0,
            is_warm: false,
            residence: None,
        };
        let latest = inputs.are_drawn.then(|| input_path(name, "latest")).and_then(|path| File::create(path).ok());
        let decode = Box::new(decode);
        let measured = RefCell::new(measured);
        let told = Cell::new(Instant::now());
        let harness = Self { name, inputs, examples, decode, watch: Watch::new(name), latest, measured, told };
        for (at, example) in harness.examples.iter().enumerate() {
            assert!(harness.measure(example), "example {at} of {name} is not valid");
        }
        harness
    }

    /// How many inputs it takes that are drawn anew.
    pub fn drawn_count(&self) -> usize {
        if self.inputs.are_drawn { self.inputs.count } else { 0 }
    }

    /// Decodes the inputs of a usual run, which are the same each time.
    pub fn accept_usual_inputs(&self) {
        for at in self.drawn_count()..self.inputs.count {
            let mut random = StdRng::seed_from_u64(at as u64);
            let mut input = vec![0; random.random_range(0..=MOST_INPUT_BYTES)];
            random.fill(input.as_mut_slice());
            let _named = NamedWhenItFails { name: self.name, input: &input };
            self.accept(&input);
        }
    }

    /// Decodes an input, and the example that it damages.
    pub fn accept(&self, input: &[u8]) {
        let is_valid = self.measure(input);
        let is_damaged_valid = damaged(input, &self.examples).is_some_and(|damaged| self.measure(&damaged));
        self.watch.rest();
        let mut measured = self.measured.borrow_mut();
        measured.inputs += 1;
        measured.valid += usize::from(is_valid || is_damaged_valid);
        if !measured.is_warm && measured.inputs > self.inputs.count / 10 {
            measured.is_warm = true;
            measured.residence = Residence::now();
            measured.left_bytes = 0;
        }
        if self.told.get().elapsed() >= PROGRESS {
            self.told.set(Instant::now());
            tell(&self.report(&measured));
        }
    }

    /// Decodes within the limits; returns whether the input is valid.
    fn measure(&self, input: &[u8]) -> bool {
        if let Some(latest) = &self.latest {
            let _ = latest.write_all_at(input, 0).and_then(|()| latest.set_len(input.len() as u64));
        }
        let mut took = Duration::MAX;
        let mut is_valid = false;
        for _ in 0..TRIES {
            self.watch.begin(input);
            let account = HeapAccount::new();
            let begun = Instant::now();
            is_valid = account.charge_call(|| (self.decode)(input));
            took = took.min(begun.elapsed());
            let peak_bytes = account.peak_bytes();
            assert!(peak_bytes <= MOST_BYTES, "{} took {peak_bytes} bytes for one input", self.name);
            let mut measured = self.measured.borrow_mut();
            measured.largest_bytes = measured.largest_bytes.max(peak_bytes);
            measured.left_bytes += account.bytes();
            if took <= MOST_TIME {
                break;
            }
        }
        assert!(took <= MOST_TIME, "{} took {took:?} for one input", self.name);
        let mut measured = self.measured.borrow_mut();
        measured.longest = measured.longest.max(took);
        is_valid
    }

    fn report(&self, measured: &Measured) -> String {
        let Measured { begun, inputs, valid, longest, largest_bytes, left_bytes, .. } = measured;
        format!(
            "{}: {inputs} of {} inputs in {} s, {valid} with valid bytes; at most {longest:?} and {} KiB for one; {left_bytes} bytes left",
            self.name,
            self.inputs.count,
            begun.elapsed().as_secs(),
            largest_bytes >> 10,
        )
    }

    /// Compares the memory that is left with that at the begin.
    pub fn finish(self) {
        let measured = self.measured.borrow();
        let report = self.report(&measured);
        if self.latest.is_some() {
            tell(&report);
        }
        assert!(measured.inputs >= self.inputs.count, "settings of bolero have cut the run short: {report}");
        assert!(!self.inputs.is_stateless || measured.left_bytes <= MOST_LEFT_BYTES, "memory is left: {report}");
        if setting("TERRACE_TEST_FUZZ_ALONE").is_some() {
            let [Some(before), Some(after)] = [measured.residence, Residence::now()] else {
                panic!("the kernel does not tell what this process holds: {report}");
            };
            tell(&format!("{}: {before} after a tenth; {after} in the end", self.name));
            assert!(
                !after.has_grown_since(&before),
                "memory grew: {before} after a tenth; {after} in the end; {report}"
            );
        }
    }
}

/// Prints an input in whose decoding a test panics.
struct NamedWhenItFails<'a> {
    name: &'a str,
    input: &'a [u8],
}

impl Drop for NamedWhenItFails<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} failed for the bytes {}", self.name, hex(self.input));
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder of inputs that ended or stopped a process: the folder for temporary files.
fn input_path(name: &str, what: &str) -> PathBuf {
    std::env::temp_dir().join(format!("terrace-fuzz-{}-{what}", name.replace(' ', "-")))
}

/// Writes past the output that the test runner captures.
fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Ends the process when an input has no end, and says which one it is.
struct Watch {
    current: Arc<Mutex<Current>>,
    /// Dropped to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Current {
    begun: Option<Instant>,
    input: Vec<u8>,
}

fn locked(current: &Mutex<Current>) -> MutexGuard<'_, Current> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    fn new(name: &'static str) -> Self {
        let current = Arc::<Mutex<Current>>::default();
        let (stop, stopped) = channel::<()>();
        let watched = Arc::clone(&current);
        let look = move || {
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(Duration::from_secs(1)) {
                let current = locked(&watched);
                if current.begun.is_some_and(|begun| begun.elapsed() >= HANG) {
                    let path = input_path(name, "hang");
                    let written = std::fs::write(&path, &current.input);
                    tell(&format!("{name} does not end for an input; {} has it: {written:?}", path.display()));
                    std::process::abort();
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("watch-{name}")).spawn(look).ok();
        Self { current, stop: Some(stop), thread }
    }

    fn begin(&self, input: &[u8]) {
        let mut current = locked(&self.current);
        current.begun = Some(Instant::now());
        current.input.clear();
        current.input.extend_from_slice(input);
    }

    fn rest(&self) {
        locked(&self.current).begun = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Damages an example as the recipe says; `None` for a recipe that is too short.
fn damaged(recipe: &[u8], examples: &[Vec<u8>]) -> Option<Vec<u8>> {
    let [example, count, steps @ ..] = recipe else { return None };
    let mut bytes = examples.get(usize::from(*example).checked_rem(examples.len())?)?.clone();
    let count = 1 + usize::from(count % MOST_STEPS);
    for step in steps.chunks_exact(STEP_BYTES).take(count) {
        damage(&mut bytes, step);
    }
    Some(bytes)
}

fn damage(bytes: &mut Vec<u8>, step: &[u8]) {
    let &[kind, value, a, b, c, d] = step else { return };
    let len = bytes.len();
    let Some(at) = (u32::from_le_bytes([a, b, c, d]) as usize).checked_rem(len) else { return };
    let number = NUMBERS.get(usize::from(value % 16)).copied().unwrap_or_default().to_le_bytes();
    let few = 1 + usize::from(value % 32);
    let end = (at + few).min(len);
    match kind % 8 {
        0 => overwrite(bytes, at, &[value]),
        1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1_u8 << (value % 8)),
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => drop(bytes.splice(at..at, std::iter::repeat_n(value, few))),
        5 => overwrite(bytes, at / 4 * 4, number.get(..4).unwrap_or_default()),
        6 => overwrite(bytes, at / 8 * 8, &number),
        _ => {
            let part = bytes.get(at..end).unwrap_or_default().to_vec();
            drop(bytes.splice(at..at, part));
        }
    }
}

fn overwrite(bytes: &mut [u8], at: usize, values: &[u8]) {
    bytes.iter_mut().skip(at).zip(values).for_each(|(byte, value)| *byte = *value);
}

/// A text of words, one for each byte of the recipe.
pub fn sentence(recipe: &[u8], words: &[&str]) -> String {
    let chosen = recipe.iter().filter_map(|byte| words.get(usize::from(*byte).checked_rem(words.len())?));
    chosen.copied().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_changes_bytes_within_the_example() {
        let example = vec![(0..64).collect::<Vec<u8>>()];
        for kind in 0..8 {
            for at in [0, 31, 63, 255] {
                let recipe = [0, 0, kind, 200, at, 0, 0, 0];
                let found = damaged(&recipe, &example);
                assert!(found.is_some_and(|found| found.len() <= 64 + 32 && found != example[0]), "{kind} at {at}");
            }
        }
        assert_eq!(damaged(&[0], &example), None);
        assert_eq!(damaged(&[0, 1, 2], &[]), None);
        assert_eq!(damaged(&[7, 1], &example).as_ref(), example.first());
        assert_eq!(sentence(&[0, 1, 3], &["a", "b"]), "a b b");
    }
}
