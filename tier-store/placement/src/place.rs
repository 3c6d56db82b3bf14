//! A place: the tier and the form of a segment's copy.

use terrace_model::TierId;
use terrace_storage::tier::codec::Form;

/// Where a segment is read: a tier, and the form of its copy there. Of two places on one tier the plain one comes first, which
/// takes more room and no time to unpack. The home is one place, a plain one by convention, whatever the form of the stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The tier.
    pub tier: TierId,
    /// The form of the copy.
    pub form: Form,
}

impl Place {
    /// A place in the plain form.
    pub fn plain(tier: TierId) -> Self {
        Self { tier, form: Form::Plain }
    }
}
