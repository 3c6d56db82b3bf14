//! Delays logins after wrong passwords.
//!
//! Who guesses gets an answer to one attempt after another, later each time, up to one every five seconds. Attempts are counted
//! by address and user, and by address alone, so that neither many guesses for one user nor guesses for many users are
//! fast. Nobody is locked out: from another address, and after the delay from the same one, the right password is
//! accepted, and it ends the delays of its user. The wait comes before the password is looked at: a client that does not wait
//! learns nothing.
//!
//! Log-ins and refusals go to the audit trail, of the refusals of one address and of all only so many in a time that clients who
//! are not let in cannot fill it.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use terrace_access::{Ending, Event, EventKind, Origin, Principal, Trail};
use tokio::time::{Instant, sleep_until};

/// Wrong passwords without a delay, for one user from one address.
const FREE_FOR_USER: u32 = 3;
/// Wrong passwords without a delay, for all users from one address.
const FREE_FOR_ADDRESS: u32 = 20;
/// The first delay; each further one is twice as long.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// The longest delay.
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// Attempts that would have to wait longer are refused at once.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Time after which wrong passwords are forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);
/// Most addresses and users that are remembered.
const MOST_REMEMBERED: usize = 20_000;
/// Characters of a name that are logged; a client may send one of any length.
const LOGGED_CHARACTERS: usize = 64;

/// Refusals of one address that are recorded ...
const RECORDED_REFUSALS: u32 = 20;
/// ... and of all addresses ...
const RECORDED_OF_ALL: u32 = 1_000;
/// ... in this time.
const RECORD_TIME: Duration = Duration::from_secs(10);

/// Refusals in the present [`RECORD_TIME`].
#[derive(Debug, Clone, Copy)]
struct Recorded {
    since: Instant,
    refusals: u32,
}

impl Recorded {
    fn new(since: Instant) -> Self {
        Self { since, refusals: 0 }
    }

    fn is_old(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= RECORD_TIME
    }

    /// Adds a refusal; true where it is one of the first `most`.
    fn add(&mut self, now: Instant, most: u32) -> bool {
        if self.is_old(now) {
            *self = Self::new(now);
        }
        self.refusals = self.refusals.saturating_add(1);
        self.refusals <= most
    }
}

/// Refusals of each address, and of all.
#[derive(Debug, Default)]
struct RecordedRefusals {
    by_address: HashMap<IpAddr, Recorded>,
    of_all: Option<Recorded>,
}

/// Who guesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Guesser {
    address: IpAddr,
    /// The hash of the user's name, which a client may choose as long as it likes; `None`: all users.
    user: Option<u64>,
}

/// Wrong passwords of one guesser.
#[derive(Debug, Clone, Copy)]
struct Guesses {
    wrong: u32,
    last: Instant,
    /// When the next attempt may be answered.
    next: Instant,
}

/// An attempt that would have to wait too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyLogins {
    /// Time after which an attempt would be answered.
    pub retry_after: Duration,
}

/// The delays of all who guessed.
#[derive(Debug, Default)]
pub struct Logins {
    guesses: Mutex<HashMap<Guesser, Guesses>>,
    names: RandomState,
    failed: AtomicU64,
    refused: AtomicU64,
    audit: Arc<Trail>,
    recorded: Mutex<RecordedRefusals>,
    unrecorded: AtomicU64,
}

impl Logins {
    /// No wrong passwords yet; log-ins go to a trail.
    pub fn new(audit: Arc<Trail>) -> Self {
        Self { audit, ..Self::default() }
    }

    /// Records that a principal logged in, and for which session, if it is for one.
    pub fn record_login(&self, origin: Origin, principal: &Principal, session: Option<&str>) {
        let mut event = Event::new(EventKind::Login, principal.shown(), &principal.user, origin);
        event.session = session.map(str::to_owned);
        self.audit.record(match principal.token_name() {
            Some(name) => event.with_text(name),
            None => event,
        });
    }

    /// Records that a log-in was refused: of the user that the client named, who is empty for a token, and what it showed.
    pub fn record_refusal(&self, origin: Origin, user: &str, shown: &str) {
        if !self.may_record(Instant::now(), origin) {
            self.unrecorded.fetch_add(1, Relaxed);
            return;
        }
        let event = Event::new(EventKind::Login, shown, user, origin);
        self.audit.record(event.ended(Ending::Refused, Some("unauthenticated".to_owned())));
    }

    /// Whether one more refusal of an address is recorded now.
    fn may_record(&self, now: Instant, origin: Origin) -> bool {
        let mut recorded = self.recorded.lock();
        if let Some(address) = origin.address.map(client_network) {
            let known = &mut recorded.by_address;
            if known.len() >= MOST_REMEMBERED {
                known.retain(|_, known| !known.is_old(now));
            }
            if known.len() >= MOST_REMEMBERED {
                known.clear();
            }
            if !known.entry(address).or_insert(Recorded::new(now)).add(now, RECORDED_REFUSALS) {
                return false;
            }
        }
        recorded.of_all.get_or_insert(Recorded::new(now)).add(now, RECORDED_OF_ALL)
    }

    /// Refusals that are not in the audit trail, because one address had too many, or all had.
    pub fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Relaxed)
    }

    /// Waits until an attempt of `user` from `address` may be answered.
    ///
    /// # Errors
    /// Where that would take too long; the attempt must not be answered then.
    pub async fn wait(&self, address: IpAddr, user: &str) -> Result<(), TooManyLogins> {
        if let Some(turn) = self.turn(Instant::now(), address, user)? {
            sleep_until(turn).await;
        }
        Ok(())
    }

    /// Notes how an attempt ended, and logs a wrong one.
    pub fn note(&self, address: IpAddr, user: &str, is_right: bool) {
        let now = Instant::now();
        let mut guesses = self.guesses.lock();
        let [by_user, by_address] = self.guessers(address, user);
        if is_right {
            guesses.remove(&by_user);
            return;
        }
        self.failed.fetch_add(1, Relaxed);
        make_room(&mut guesses, now);
        for guesser in [by_user, by_address] {
            let known = guesses.entry(guesser).or_insert(Guesses { wrong: 0, last: now, next: now });
            known.wrong = known.wrong.saturating_add(1);
            known.last = now;
        }
        drop(guesses);
        let user: String = user.chars().take(LOGGED_CHARACTERS).collect();
        tracing::warn!(%address, user, "wrong user or password");
    }

    /// Attempts with a wrong user or password.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Attempts that were refused because they would have had to wait too long.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Those as whom an attempt counts: the user from this address, and all users from there.
    fn guessers(&self, address: IpAddr, user: &str) -> [Guesser; 2] {
        let address = client_network(address);
        [Some(self.names.hash_one(user)), None].map(|user| Guesser { address, user })
    }

    /// The time at which an attempt may be answered, which takes its turn; `None`: at once.
    fn turn(&self, now: Instant, address: IpAddr, user: &str) -> Result<Option<Instant>, TooManyLogins> {
        let mut guesses = self.guesses.lock();
        if guesses.is_empty() {
            return Ok(None);
        }
        let [by_user, by_address] = self.guessers(address, user);
        let mut turn = None;
        let delayed = [(by_user, FREE_FOR_USER), (by_address, FREE_FOR_ADDRESS)];
        let delayed = delayed.map(|(guesser, free)| {
            let known = guesses.get(&guesser).filter(|known| now.duration_since(known.last) < FORGET_AFTER);
            let delay = known.map_or(Duration::ZERO, |known| delay(known.wrong, free));
            if let Some(known) = known.filter(|_| !delay.is_zero()) {
                turn = turn.max(Some(known.next.max(now)));
            }
            (guesser, delay)
        });
        let Some(turn) = turn else { return Ok(None) };
        let wait = turn.duration_since(now);
        if wait > LONGEST_WAIT {
            self.refused.fetch_add(1, Relaxed);
            return Err(TooManyLogins { retry_after: wait });
        }
        for (guesser, delay) in delayed {
            if let Some(known) = guesses.get_mut(&guesser).filter(|_| !delay.is_zero()) {
                known.next = turn + delay;
            }
        }
        Ok(Some(turn))
    }
}

/// The delay between two attempts after so many wrong ones.
fn delay(wrong: u32, free: u32) -> Duration {
    match wrong.checked_sub(free) {
        None => Duration::ZERO,
        Some(more) => FIRST_DELAY.saturating_mul(2_u32.saturating_pow(more)).min(LONGEST_DELAY),
    }
}

/// The address by which a client is counted: of IPv6 the network of 64 bits, any address of which one client may have.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// Forgets what is old and, where too much is remembered, those who guessed least.
fn make_room(guesses: &mut HashMap<Guesser, Guesses>, now: Instant) {
    if guesses.len() < MOST_REMEMBERED {
        return;
    }
    guesses.retain(|_, known| now.duration_since(known.last) < FORGET_AFTER);
    if guesses.len() >= MOST_REMEMBERED {
        guesses.retain(|_, known| known.wrong > FREE_FOR_USER);
    }
    if guesses.len() >= MOST_REMEMBERED {
        guesses.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn wait(logins: &Logins, now: Instant, address: IpAddr, user: &str) -> Duration {
        logins.turn(now, address, user).unwrap().map_or(Duration::ZERO, |turn| turn - now)
    }

    #[test]
    fn guesses_wait_one_behind_the_other_and_nobody_is_locked_out() {
        let logins = Logins::default();
        let now = Instant::now();
        let there: IpAddr = "10.0.0.7".parse().unwrap();
        for _ in 0..FREE_FOR_USER {
            assert_eq!(wait(&logins, now, HERE, "ada"), Duration::ZERO);
            logins.note(HERE, "ada", false);
        }
        // At once: each takes its turn, whether or not it waits for the answer.
        let now = Instant::now();
        let turns: Vec<Duration> = (0..4).map(|_| wait(&logins, now, HERE, "ada")).collect();
        assert_eq!(turns, [0, 100, 200, 300].map(Duration::from_millis));
        assert_eq!(wait(&logins, now, HERE, "bob"), Duration::ZERO);
        assert_eq!(wait(&logins, now, there, "ada"), Duration::ZERO);
        for _ in 0..10 {
            logins.note(HERE, "ada", false);
        }
        let mut last = Duration::ZERO;
        let refused = loop {
            match logins.turn(now, HERE, "ada") {
                Ok(turn) => last = turn.unwrap() - now,
                Err(refused) => break refused,
            }
        };
        assert!(last <= LONGEST_WAIT && refused.retry_after <= LONGEST_WAIT + LONGEST_DELAY, "{last:?} {refused:?}");
        assert_eq!(logins.refused(), 1);
        logins.note(HERE, "ada", true);
        assert_eq!(wait(&logins, now, HERE, "ada"), Duration::ZERO, "the right password ends the delays");
    }

    #[test]
    fn many_users_from_one_address_are_slow_too_and_all_is_forgotten() {
        let logins = Logins::default();
        for number in 0..FREE_FOR_ADDRESS {
            logins.note(HERE, &format!("user {number}"), false);
        }
        let now = Instant::now();
        wait(&logins, now, HERE, "another");
        assert_eq!(wait(&logins, now, HERE, "one more"), FIRST_DELAY);
        assert_eq!(wait(&logins, now + FORGET_AFTER, HERE, "one more"), Duration::ZERO);
        assert_eq!(logins.failed(), u64::from(FREE_FOR_ADDRESS));
        let one: IpAddr = "2001:db8::1".parse().unwrap();
        let other: IpAddr = "2001:db8::ffff:2".parse().unwrap();
        assert_eq!(client_network(one), client_network(other));
        assert_eq!(client_network("::ffff:127.0.0.1".parse().unwrap()), HERE);
    }

    #[test]
    fn log_ins_are_recorded_and_few_refusals_of_an_address() {
        let audit = Arc::<Trail>::default();
        let logins = Logins::new(Arc::clone(&audit));
        let origin = Origin::new(terrace_access::Port::Http, HERE);
        logins.record_login(origin, &Principal::anonymous("ada"), Some("s1"));
        for _ in 0..2 * RECORDED_REFUSALS {
            logins.record_refusal(origin, "eve", "password");
        }
        let events = audit.latest();
        assert_eq!(events.len() as u32, 1 + RECORDED_REFUSALS);
        assert_eq!(logins.unrecorded(), u64::from(RECORDED_REFUSALS));
        let [last, .., first] = events.as_slice() else { unreachable!() };
        assert_eq!((first.action.as_str(), first.user.as_str(), first.outcome), ("nothing", "ada", Ending::Done));
        assert_eq!((last.user.as_str(), last.address, last.outcome), ("eve", Some(HERE), Ending::Refused));
        let there = Origin::new(terrace_access::Port::Http, "10.0.0.7".parse().unwrap());
        assert!(logins.may_record(Instant::now(), there) && !logins.may_record(Instant::now(), origin));
        assert!(logins.may_record(Instant::now() + RECORD_TIME, origin));
    }

    #[test]
    fn refusals_of_many_addresses_do_not_fill_the_trail() {
        let logins = Logins::default();
        let now = Instant::now();
        let from =
            |number: u32| Origin::new(terrace_access::Port::Flight, std::net::Ipv4Addr::from_bits(number).into());
        let recorded = (0..2 * RECORDED_OF_ALL).filter(|number| logins.may_record(now, from(*number))).count();
        assert_eq!(recorded as u32, RECORDED_OF_ALL);
        assert!(logins.may_record(now + RECORD_TIME, from(0)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let logins = Logins::default();
        for number in 0..3 * MOST_REMEMBERED as u32 {
            logins.note(std::net::Ipv4Addr::from_bits(number).into(), "ada", false);
        }
        assert!(logins.guesses.lock().len() <= MOST_REMEMBERED + 2);
    }
}
