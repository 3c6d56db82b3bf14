//! Formats for programs: separated values, JSON, Arrow IPC, Parquet.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_ipc::writer::{FileWriter, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::nested::{flattened, with_text_keys, without_intervals};
use super::{Out, RowWriter, write_error};
use crate::error::{Error, Result};

/// Values between delimiters, quoted where necessary, below a line of names.
pub struct Delimited<'a>(arrow::csv::Writer<Out<'a>>);

impl<'a> Delimited<'a> {
    /// Writes the line of names.
    pub fn new(delimiter: u8, schema: &SchemaRef, out: Out<'a>) -> Result<Self> {
        let options = arrow::csv::WriterBuilder::new().with_header(true).with_delimiter(delimiter);
        let mut writer = options.build(out);
        writer.write(&flattened(&RecordBatch::new_empty(SchemaRef::clone(schema)))?)?;
        Ok(Self(writer))
    }
}

impl RowWriter for Delimited<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        Ok(self.0.write(&flattened(rows)?)?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One JSON array of objects.
pub struct JsonArray<'a>(arrow::json::ArrayWriter<Out<'a>>);

impl<'a> JsonArray<'a> {
    /// Writes nothing yet.
    pub fn new(out: Out<'a>) -> Self {
        Self(arrow::json::WriterBuilder::new().with_explicit_nulls(true).build(out))
    }
}

impl RowWriter for JsonArray<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        Ok(self.0.write(&with_text_keys(rows)?)?)
    }

    fn finish(&mut self) -> Result<()> {
        self.0.finish()?;
        self.0.get_mut().write_all(b"\n").map_err(write_error)
    }
}

/// A JSON object per line.
pub struct JsonLines<'a>(arrow::json::LineDelimitedWriter<Out<'a>>);

impl<'a> JsonLines<'a> {
    /// Writes nothing yet.
    pub fn new(out: Out<'a>) -> Self {
        Self(arrow::json::WriterBuilder::new().with_explicit_nulls(true).build(out))
    }
}

impl RowWriter for JsonLines<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        Ok(self.0.write(&with_text_keys(rows)?)?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.0.finish()?)
    }
}

/// An Arrow IPC stream.
pub struct IpcStream<'a>(StreamWriter<Out<'a>>);

impl<'a> IpcStream<'a> {
    /// Writes the schema.
    pub fn new(schema: &SchemaRef, out: Out<'a>) -> Result<Self> {
        Ok(Self(StreamWriter::try_new(out, schema)?))
    }
}

impl RowWriter for IpcStream<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        Ok(self.0.write(rows)?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.0.finish()?)
    }
}

/// An Arrow IPC file.
pub struct IpcFile<'a>(FileWriter<Out<'a>>);

impl<'a> IpcFile<'a> {
    /// Writes the schema.
    pub fn new(schema: &SchemaRef, out: Out<'a>) -> Result<Self> {
        Ok(Self(FileWriter::try_new(out, schema)?))
    }
}

impl RowWriter for IpcFile<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        Ok(self.0.write(rows)?)
    }

    fn finish(&mut self) -> Result<()> {
        Ok(self.0.finish()?)
    }
}

/// A Parquet file, compressed by Zstandard.
pub struct Parquet<'a>(ArrowWriter<Out<'a>>);

impl<'a> Parquet<'a> {
    /// Writes the head of the file.
    pub fn new(schema: &SchemaRef, out: Out<'a>) -> Result<Self> {
        let schema = without_intervals(&RecordBatch::new_empty(SchemaRef::clone(schema)))?.schema();
        let options = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
        Ok(Self(ArrowWriter::try_new(out, schema, Some(options.build())).map_err(failed)?))
    }
}

impl RowWriter for Parquet<'_> {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.0.write(&without_intervals(rows)?).map_err(failed)
    }

    fn finish(&mut self) -> Result<()> {
        self.0.finish().map(drop).map_err(failed)
    }
}

fn failed(error: ParquetError) -> Error {
    Error::System(format!("cannot write the result as Parquet: {error}"))
}
