//! Paging of lists: `?limit=&offset=`, and the envelope with the total.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use utoipa::openapi::{ArrayBuilder, Ref};
use utoipa::{IntoParams, ToSchema};

use super::problem::Problem;

/// Rows of a page when the request does not say.
pub const DEFAULT_LIMIT: usize = 100;
/// Most rows of a page.
pub const MAX_LIMIT: usize = 10_000;

/// The parameters of a page, as a request gives them.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RawPage {
    /// Most items in the answer.
    #[param(minimum = 1, maximum = 10_000, default = 100)]
    limit: Option<usize>,
    /// Items to skip.
    #[param(default = 0)]
    offset: Option<usize>,
}

/// The part of a list that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// At most this many items, 1 to [`MAX_LIMIT`].
    pub limit: usize,
    /// Items skipped.
    pub offset: usize,
}

impl Page {
    /// Number of items to read from a log to cut this page and to know whether more follow.
    pub fn items_to_read(self) -> usize {
        self.offset.saturating_add(self.limit).saturating_add(1)
    }

    /// Cuts this page out of `items`, of which there are `total` in all.
    pub fn cut<T>(self, items: impl IntoIterator<Item = T>, total: usize) -> Paged<T> {
        Paged { total: Some(total), ..self.cut_log(items) }
    }

    /// Cuts this page out of a log of which only [`Page::items_to_read`] items were read.
    pub fn cut_log<T>(self, items: impl IntoIterator<Item = T>) -> Paged<T> {
        let mut items = items.into_iter().skip(self.offset);
        let page = items.by_ref().take(self.limit).collect();
        Paged { items: page, total: None, more: items.next().is_some(), limit: self.limit, offset: self.offset }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Page {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Query(raw) = Query::<RawPage>::from_request_parts(parts, state).await?;
        let limit = raw.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::bad_request(format!("limit must be between 1 and {MAX_LIMIT}, not {limit}")));
        }
        Ok(Self { limit, offset: raw.offset.unwrap_or(0) })
    }
}

/// The schema of the items of a page: `ToSchema` would copy that of `T` into each page.
fn item_schema<T: ToSchema>() -> ArrayBuilder {
    let description = Some("The items of this page.");
    ArrayBuilder::new().items(Ref::from_schema_name(T::name())).description(description)
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Paged<T> {
    /// The items of this page.
    #[schema(schema_with = item_schema::<T>)]
    pub items: Vec<T>,
    /// Items in the whole list; `null` for logs, which are not counted.
    #[schema(required)]
    pub total: Option<usize>,
    /// True when items follow this page.
    pub more: bool,
    /// The requested limit, or the default.
    pub limit: usize,
    /// The requested offset, or 0.
    pub offset: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_cut_and_says_the_total() {
        let page = Page { limit: 2, offset: 3 }.cut(0..6, 6);
        assert_eq!((page.items, page.total, page.more), (vec![3, 4], Some(6), true));
        assert!(!Page { limit: 3, offset: 3 }.cut(0..6, 6).more);
        assert_eq!(Page { limit: 3, offset: 3 }.items_to_read(), 7);
        assert!(Page { limit: 2, offset: 9 }.cut(0..6, 6).items.is_empty());
    }
}
