//! Decodes the messages of one file or stream into rows.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow_ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow_ipc::{MessageHeader, MetadataVersion, root_as_message};

use crate::account::Limits;
use crate::buffer_selection::BufferSelection;
use crate::error::{Result, malformed};
use crate::expanded::check_expanded;
use crate::inflate::{Inflater, Message};

/// Decodes messages of one schema.
pub(crate) struct Decoder {
    schema: SchemaRef,
    version: MetadataVersion,
    projection: Option<Vec<usize>>,
    /// `None`: every buffer is read.
    selection: Option<BufferSelection>,
    dictionaries: HashMap<i64, ArrayRef>,
    inflater: Inflater,
}

impl Decoder {
    pub(crate) fn new(
        schema: SchemaRef,
        version: MetadataVersion,
        projection: Option<Vec<usize>>,
        limits: Limits,
    ) -> Self {
        let selection = projection.as_ref().map(|columns| BufferSelection::for_columns(&schema, columns, version));
        let inflater = Inflater::new(limits);
        Self { schema, version, projection, selection, dictionaries: HashMap::new(), inflater }
    }

    /// Decodes the rows of a message; `None` for a dictionary, which the decoder keeps.
    pub(crate) fn read(&mut self, message: Message) -> Result<Option<RecordBatch>> {
        let message = self.inflater.inflate_selected(message, self.selection.as_ref())?;
        // Arrow's reader panics at some kinds of damage.
        let read = catch_unwind(AssertUnwindSafe(|| self.decode(&message)));
        let rows = read.map_err(|_| malformed("a message cannot be read: it is damaged"))??;
        rows.as_ref().map_or(Ok(()), |rows| check_expanded(rows, self.inflater.limits().expanded_bytes))?;
        Ok(rows)
    }

    fn decode(&mut self, message: &Message) -> Result<Option<RecordBatch>> {
        let Ok(parsed) = root_as_message(&message.header) else { return Err(malformed("a header cannot be read")) };
        let body = Buffer::from(message.body.clone());
        match parsed.header_type() {
            MessageHeader::RecordBatch => {
                let batch = parsed.header_as_record_batch().ok_or_else(|| malformed("a message has no rows"))?;
                let schema = Arc::clone(&self.schema);
                let dictionaries = &self.dictionaries;
                let decoder = RecordBatchDecoder::try_new(&body, batch, schema, dictionaries, &self.version)?;
                Ok(Some(decoder.with_projection(self.projection.as_deref()).read_record_batch()?))
            }
            MessageHeader::DictionaryBatch => {
                let batch = parsed.header_as_dictionary_batch();
                let batch = batch.ok_or_else(|| malformed("a dictionary cannot be read"))?;
                read_dictionary(&body, batch, &self.schema, &mut self.dictionaries, &self.version)?;
                Ok(None)
            }
            MessageHeader::NONE => Ok(None),
            other => Err(malformed(format!("it has a message of kind {} where rows are expected", other.0))),
        }
    }
}
