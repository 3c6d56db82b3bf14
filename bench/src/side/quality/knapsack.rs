//! The knapsack of two tiers by branch and bound over all its items (Horowitz and Sahni), as the solver of the thesis
//! does it.
//!
//! Items are ordered by falling value per byte. Forward, the search takes all items that fit. At the end, or when even
//! a part of the next item would not beat the best answer so far, it goes back to the last item that was taken and
//! continues without it.

/// An item; value per byte decides the order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) segment: usize,
    pub(super) value: f64,
    pub(super) bytes: f64,
}

/// Two sums that differ by less than this part are the same.
const EPSILON: f64 = 1e-13;
/// Steps between two reads of the clock.
const STEPS: usize = 4096;

/// A search that can be interrupted.
#[derive(Debug)]
pub(super) struct Knapsack {
    items: Vec<Item>,
    /// Values and bytes of all items before each, and of all.
    before: Vec<(f64, f64)>,
    taken: Vec<usize>,
    value: f64,
    room: f64,
    next: usize,
    best: Vec<usize>,
    best_value: f64,
    done: bool,
}

impl Knapsack {
    /// A search in which nothing is taken yet.
    pub(super) fn new(mut items: Vec<Item>, capacity: f64) -> Self {
        items.retain(|item| item.value > 0.0 && item.bytes <= capacity);
        items.sort_by(|a, b| (b.value * a.bytes).total_cmp(&(a.value * b.bytes)).then(a.segment.cmp(&b.segment)));
        let mut before = vec![(0.0, 0.0)];
        let mut sum = (0.0, 0.0);
        for item in &items {
            sum = (sum.0 + item.value, sum.1 + item.bytes);
            before.push(sum);
        }
        let taken = Vec::new();
        let best = Vec::new();
        Self { items, before, taken, value: 0.0, room: capacity, next: 0, best, best_value: 0.0, done: false }
    }

    /// True when the search has ended, so that no answer is better.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Segments of the best answer so far.
    pub(super) fn best(&self) -> impl Iterator<Item = usize> {
        self.best.iter().filter_map(|at| self.items.get(*at)).map(|item| item.segment)
    }

    /// Searches until the end or until `until` returns true.
    pub(super) fn search(&mut self, mut until: impl FnMut() -> bool) {
        while !self.done {
            for _ in 0..STEPS {
                if self.done {
                    return;
                }
                self.step();
            }
            if until() {
                return;
            }
        }
    }

    fn step(&mut self) {
        let fit = self.first_unfitting();
        if self.value + self.upper_bound(fit) <= self.best_value * (1.0 + EPSILON) {
            return self.backtrack();
        }
        for (at, item) in self.items.iter().enumerate().take(fit).skip(self.next) {
            self.taken.push(at);
            self.value += item.value;
            self.room -= item.bytes;
        }
        // Leave out the first item that does not fit.
        self.next = fit + 1;
        if self.next >= self.items.len() {
            if self.value > self.best_value {
                self.best_value = self.value;
                self.best.clone_from(&self.taken);
            }
            self.backtrack();
        }
    }

    /// The first item from the next one on that does not fit beside those before it.
    fn first_unfitting(&self) -> usize {
        let (_, base) = self.sum(self.next);
        let upto = self.before.partition_point(|(_, bytes)| bytes - base <= self.room);
        upto.saturating_sub(1).max(self.next).min(self.items.len())
    }

    /// An upper bound of the value of the items from the next one on: all items before `fit`, and a part of that one.
    fn upper_bound(&self, fit: usize) -> f64 {
        let from = self.sum(self.next);
        let upto = self.sum(fit);
        let room = self.room - (upto.1 - from.1);
        let part = self.items.get(fit).map_or(0.0, |item| item.value * (room / item.bytes.max(1.0)).min(1.0));
        upto.0 - from.0 + part
    }

    fn sum(&self, at: usize) -> (f64, f64) {
        self.before.get(at).or(self.before.last()).copied().unwrap_or((0.0, 0.0))
    }

    /// Continues without the last item that was taken.
    fn backtrack(&mut self) {
        let Some(at) = self.taken.pop() else {
            self.done = true;
            return;
        };
        if let Some(item) = self.items.get(at) {
            self.value -= item.value;
            self.room += item.bytes;
        }
        self.next = at + 1;
    }
}
