//! The order in which classes of reads and writes are served, as an operator may choose it.
//!
//! hStorage-DB and Hetero-DB keep the assignment of classes to priorities in a table that an administrator can change; here
//! it is the rank of each class in the queue.

use terrace_model::{Error, Result};

use super::intent::{Class, Intent, Level};

/// Which of the reads of a rank is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Turns {
    /// That of the statement which has had the fewest bytes, and of its reads the one of the lowest operator.
    #[default]
    Statement,
    /// That of the statement which has had the fewest bytes, and of its reads the one that came first, whatever their levels.
    Bytes,
    /// The one that came first.
    Arrival,
}

/// The rank of each class, the turns within one, and which classes placement learns from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoRules {
    /// The class in whose place the reads of each class wait, in the order of [`Class::ALL`].
    places: [Class; Class::ALL.len()],
    turns: Turns,
    /// The least urgent class whose reads count as heat and bring columns into memory.
    admitted: Class,
}

impl Default for IoRules {
    /// Each class has its own rank, statements take turns, and placement learns from all that statements read of tables.
    fn default() -> Self {
        Self { places: Class::ALL, turns: Turns::Statement, admitted: Class::Prefetch }
    }
}

impl IoRules {
    /// The order of [`Self::default`], as [`Self::new`] takes it.
    pub const DEFAULT_ORDER: &str = "point > needed > spill > prefetch > write > upkeep";

    /// Rules from the names of all classes, the most urgent first, with `>` between ranks and `=` between classes of one.
    /// Points overtake what waits for the device only where their rank is theirs alone.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a class is missing, unknown or there twice, or when points do not come first.
    pub fn new(order: &str, turns: Turns) -> Result<Self> {
        let invalid = |what: String| {
            let rule = "each class once, the most urgent first, with '>' between ranks and '=' between classes of one";
            Error::Invalid(format!("the order of reads '{order}' {what}; name {rule}, as in '{}'", Self::DEFAULT_ORDER))
        };
        let mut ranks: Vec<Vec<Class>> = Vec::new();
        for names in order.split('>') {
            let mut rank = Vec::new();
            for name in names.split('=').map(str::trim) {
                let class = Class::ALL.into_iter().find(|class| class.name() == name);
                let class = class.ok_or_else(|| invalid(format!("names '{name}', which is no class")))?;
                if ranks.iter().flatten().chain(&rank).any(|known| *known == class) {
                    return Err(invalid(format!("names '{name}' twice")));
                }
                rank.push(class);
            }
            ranks.push(rank);
        }
        if let Some(class) = Class::ALL.into_iter().find(|class| !ranks.iter().flatten().any(|known| known == class)) {
            return Err(invalid(format!("lacks '{}'", class.name())));
        }
        if ranks.first().is_none_or(|first| !first.contains(&Class::Point)) {
            return Err(invalid("does not begin with 'point'".to_owned()));
        }
        // The place of points is theirs alone: there they overtake.
        let first_place = usize::from(ranks.first().is_some_and(|first| first.len() > 1));
        let mut places = Class::ALL;
        for (rank, place) in ranks.iter().zip(Class::ALL.into_iter().skip(first_place)) {
            rank.iter().for_each(|class| *class.entry_in(places.each_mut()) = place);
        }
        Ok(Self { places, turns, ..Self::default() })
    }

    /// The same rules, with placement learning only from reads of `least` and of classes that are more urgent by nature
    /// (in the order of [`Class::ALL`], not of ranks).
    #[must_use]
    pub fn with_admission_up_to(self, least: Class) -> Self {
        Self { admitted: least, ..self }
    }

    /// Whether a read of the home of this class counts as heat, and may bring its columns into memory before the next epoch
    /// (the threshold of hStorage-DB, section 5.2: requests behind it leave the cache as it is). Spilled rows, writes and
    /// upkeep never do.
    pub fn admits(&self, class: Class) -> bool {
        class.is_demand() && class <= self.admitted
    }

    /// The rank of a class, 1 for the most urgent.
    pub fn rank(&self, class: Class) -> usize {
        let place = class.entry_in(self.places);
        let before = Class::ALL.into_iter().filter(|other| *other < place && self.places.contains(other));
        before.count() + 1
    }

    /// Whether reads of a class overtake what waits for the device.
    pub fn overtakes(&self, class: Class) -> bool {
        class.entry_in(self.places) == Class::Point
    }

    /// Which read of a rank is next.
    pub fn turns(&self) -> Turns {
        self.turns
    }

    /// The place in the queue of a read with this intent.
    pub(super) fn queued(&self, intent: Intent) -> Intent {
        let class = intent.class.entry_in(self.places);
        match self.turns {
            Turns::Statement => Intent { class, ..intent },
            Turns::Bytes => Intent { class, level: Level::NONE, ..intent },
            Turns::Arrival => class.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_order_gives_each_class_its_rank() {
        let ranks = |order: &str| Class::ALL.map(|class| IoRules::new(order, Turns::Statement).unwrap().rank(class));
        assert_eq!(IoRules::new(IoRules::DEFAULT_ORDER, Turns::Statement).unwrap(), IoRules::default());
        assert_eq!(ranks(IoRules::DEFAULT_ORDER), [1, 2, 3, 4, 5, 6]);
        assert_eq!(ranks("point>spill>needed=prefetch>upkeep=write"), [1, 3, 2, 3, 4, 4]);
        assert_eq!(ranks("upkeep = write = prefetch = spill = needed = point"), [1; 6]);
        assert_eq!(ranks("point = needed > prefetch > spill > upkeep > write"), [1, 1, 3, 2, 5, 4]);
        let overtakes = |order: &str| IoRules::new(order, Turns::Arrival).unwrap().overtakes(Class::Point);
        assert!(overtakes("point > upkeep = write = prefetch = spill = needed"));
        assert!(!overtakes("point = spill > upkeep = write = prefetch = needed"), "they have no rank of their own");
    }

    #[test]
    fn placement_learns_from_the_classes_up_to_the_threshold() {
        let admitted = |rules: IoRules| Class::ALL.into_iter().filter(|class| rules.admits(*class)).collect::<Vec<_>>();
        let demand = [Class::Point, Class::Needed, Class::Prefetch];
        assert_eq!(admitted(IoRules::default()), demand);
        assert_eq!(admitted(IoRules::default().with_admission_up_to(Class::Upkeep)), demand, "upkeep never counts");
        assert_eq!(admitted(IoRules::default().with_admission_up_to(Class::Needed)), demand[..2]);
        // The order of the queue does not matter.
        let reversed = IoRules::new("point > upkeep > write > prefetch > spill > needed", Turns::Arrival).unwrap();
        assert_eq!(admitted(reversed.with_admission_up_to(Class::Point)), demand[..1]);
    }

    #[test]
    fn an_order_that_is_no_order_is_refused() {
        for (order, part) in [
            ("point > needed > spill > prefetch > write", "lacks 'upkeep'"),
            ("point > needed > spill > prefetch > write > upkeep > move", "'move', which is no class"),
            ("point > needed > spill > prefetch > write > upkeep = needed", "'needed' twice"),
            ("needed > point > spill > prefetch > write > upkeep", "begin with 'point'"),
            ("", "'', which is no class"),
        ] {
            let error = IoRules::new(order, Turns::Statement).unwrap_err().to_string();
            assert!(error.contains(part), "{order}: {error}");
        }
    }
}
