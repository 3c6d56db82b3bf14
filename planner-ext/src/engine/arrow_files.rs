//! Reads foreign Arrow files within query memory.
//!
//! DataFusion's own reader trusts the sizes in a file and allocates them. This one reads with [`terrace_ipc`] and is
//! otherwise the same: files and streams, projections pushed down, large files read by several partitions. DataFusion
//! writes the files. An object of an object store is read as a whole, by one partition, into query memory; its schema
//! is read by requests of its own.
//!
//! - [`windows`]: an object as a file, of which some windows were fetched
//!
//! Upstream: <https://github.com/apache/arrow-rs/issues/10921> (`arrow-ipc`: a footer block's declared body length is
//! zero-filled before it is read), open, and <https://github.com/apache/arrow-rs/pull/10959> (Expose IPC decompressed
//! size and bound LZ4 output), open; can go when the test `lengths_that_a_file_announces_are_not_believed` passes
//! without it.

mod windows;

use std::collections::HashMap;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{GetExt, Statistics};
use datafusion::datasource::file_format::arrow::{ArrowFormat, ArrowFormatFactory};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener, FileScanConfig, FileSinkConfig, FileSource};
use datafusion::datasource::projection::{ProjectionOpener, SplitProjection};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::{DataFusionError, Result};
use datafusion::object_store::{GetOptions, GetResult, GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt};
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{LexRequirement, PhysicalExpr};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, apply_expression_roots};
use futures::StreamExt;
use futures::stream::BoxStream;
use terrace_ipc::{FileReader, Limits};

use super::memory::MessageMemory;
use crate::error::{Error, ErrorKind};
use windows::Windows;

/// The file format `arrow`, in place of DataFusion's.
#[derive(Debug, Clone)]
pub(super) struct ArrowFiles {
    memory: MessageMemory,
}

impl ArrowFiles {
    /// Makes the format; decompressed bytes are charged to `memory`, and may take all of it.
    pub(super) fn new(memory: MessageMemory) -> Self {
        Self { memory }
    }

    fn limits(&self) -> Limits {
        let most = self.memory.limit_bytes();
        Limits { message_bytes: most, expanded_bytes: most, account: Some(Arc::new(self.memory.clone())) }
    }
}

impl GetExt for ArrowFiles {
    fn get_ext(&self) -> String {
        ArrowFormatFactory::new().get_ext()
    }
}

impl FileFormatFactory for ArrowFiles {
    fn create(&self, _state: &dyn Session, _options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        Ok(Arc::new(self.clone()))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(self.clone())
    }
}

#[async_trait]
impl FileFormat for ArrowFiles {
    fn get_ext(&self) -> String {
        FileFormat::get_ext(&ArrowFormat)
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        ArrowFormat.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        None
    }

    async fn infer_schema(
        &self,
        _state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        let mut schemas = Vec::new();
        for object in objects {
            let place = object.location.to_string();
            let found = store.get(&object.location).await?;
            let schema = match found.payload {
                GetResultPayload::File(file, _) => {
                    terrace_ipc::read_schema(file).map_err(|error| read_error(&place, error))?
                }
                GetResultPayload::Stream(_) => object_schema(store, &found.meta).await?,
            };
            schemas.push(schema.as_ref().clone());
        }
        Ok(Arc::new(Schema::try_merge(schemas)?))
    }

    async fn infer_stats(
        &self,
        _state: &dyn Session,
        _store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        _object: &ObjectMeta,
    ) -> Result<Statistics> {
        Ok(Statistics::new_unknown(&table_schema))
    }

    async fn create_physical_plan(&self, _state: &dyn Session, scan: FileScanConfig) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(DataSourceExec::from_data_source(scan))
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        state: &dyn Session,
        sink: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        ArrowFormat.create_writer_physical_plan(input, state, sink, order).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        Arc::new(ArrowFilesSource {
            projection: SplitProjection::unprojected(&table_schema),
            table_schema,
            metrics: ExecutionPlanMetricsSet::new(),
            limits: self.limits(),
        })
    }
}

/// A scan of Arrow files.
#[derive(Clone)]
struct ArrowFilesSource {
    table_schema: TableSchema,
    projection: SplitProjection,
    metrics: ExecutionPlanMetricsSet,
    limits: Limits,
}

impl FileSource for ArrowFilesSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        _scan: &FileScanConfig,
        _partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let opener =
            ArrowFileOpener { store, columns: self.projection.file_indices.clone(), limits: self.limits.clone() };
        ProjectionOpener::try_new(self.projection.clone(), Arc::new(opener), self.table_schema.file_schema())
    }

    fn table_schema(&self) -> &TableSchema {
        &self.table_schema
    }

    fn with_batch_size(&self, _rows: usize) -> Arc<dyn FileSource> {
        Arc::new(self.clone())
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        Some(&self.projection.source)
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        &self.metrics
    }

    fn file_type(&self) -> &str {
        "arrow"
    }

    fn try_pushdown_projection(&self, projection: &ProjectionExprs) -> Result<Option<Arc<dyn FileSource>>> {
        let merged = self.projection.source.try_merge(projection)?;
        let projection = SplitProjection::new(self.table_schema.file_schema(), &merged);
        Ok(Some(Arc::new(Self { projection, ..self.clone() })))
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        apply_expression_roots(self.projection.source.iter(), f)
    }
}

/// Opens the files of a scan, one after the other.
struct ArrowFileOpener {
    store: Arc<dyn ObjectStore>,
    columns: Vec<usize>,
    limits: Limits,
}

impl FileOpener for ArrowFileOpener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let store = Arc::clone(&self.store);
        let columns = self.columns.clone();
        let limits = self.limits.clone();
        Ok(Box::pin(async move {
            let place = file.object_meta.location.to_string();
            let begin = |at: i64| u64::try_from(at).unwrap_or(0);
            let range = file.range.as_ref().map(|range| begin(range.start)..begin(range.end));
            let found = store.get(&file.object_meta.location).await?;
            match found.payload {
                GetResultPayload::File(file, _) => read_rows(file, columns, range, limits, place),
                // All of its rows belong to the partition that has its first byte.
                GetResultPayload::Stream(_) if range.as_ref().is_some_and(|range| range.start > 0) => {
                    Ok(futures::stream::empty().boxed())
                }
                GetResultPayload::Stream(_) => {
                    read_rows(ObjectContent::fetch(found, &limits, &place).await?, columns, None, limits, place)
                }
            }
        }))
    }
}

fn read_rows(
    content: impl Read + Seek + Send + 'static,
    columns: Vec<usize>,
    range: Option<Range<u64>>,
    limits: Limits,
    place: String,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let reader = FileReader::open(content, Some(columns), range, limits).map_err(|error| read_error(&place, error))?;
    Ok(futures::stream::iter(reader).map(move |rows| rows.map_err(|error| read_error(&place, error))).boxed())
}

/// The bytes of an object, which count as query memory.
struct ObjectContent {
    bytes: Cursor<bytes::Bytes>,
    _charge: Option<terrace_ipc::Charge>,
}

impl ObjectContent {
    /// Fetches an object as a whole.
    async fn fetch(found: GetResult, limits: &Limits, place: &str) -> Result<Self> {
        let bytes = found.range.end.saturating_sub(found.range.start);
        let charge = limits.account.as_ref().map(|account| account.charge(bytes)).transpose();
        let charge = charge.map_err(|why| {
            let message =
                format!("the Arrow object /{place} is read as a whole; there is no memory for {bytes} bytes: {why}");
            DataFusionError::from(Error::new(ErrorKind::ResourceExhausted, message))
        })?;
        Ok(Self { bytes: Cursor::new(found.bytes().await?), _charge: charge })
    }
}

impl Read for ObjectContent {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.bytes.read(buffer)
    }
}

impl Seek for ObjectContent {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.bytes.seek(to)
    }
}

/// The schema of an object, for which only the windows that the reader asks for are fetched, all of one version.
async fn object_schema(store: &Arc<dyn ObjectStore>, object: &ObjectMeta) -> Result<SchemaRef> {
    let place = object.location.as_ref();
    let mut content = Windows::new(object.size);
    loop {
        let schema = terrace_ipc::read_schema(&mut content);
        let Some(missing) = content.take_missing() else { return schema.map_err(|error| read_error(place, error)) };
        if !content.has_room(&missing) {
            let most = Windows::MOST_BYTES;
            let message = format!("cannot read the Arrow object /{place}: its schema takes more than {most} bytes");
            return Err(Error::invalid(message).into());
        }
        let options = GetOptions::new().with_range(Some(missing.clone())).with_if_match(object.e_tag.clone());
        let bytes = store.get_opts(&object.location, options).await?.bytes().await?;
        content.add(missing.start, bytes);
    }
}

fn read_error(place: &str, error: terrace_ipc::Error) -> DataFusionError {
    let kind = match &error {
        terrace_ipc::Error::TooLarge(_) => ErrorKind::ResourceExhausted,
        terrace_ipc::Error::Malformed(_) => ErrorKind::InvalidArgument,
        terrace_ipc::Error::Io(io) => {
            return Error::from(DataFusionError::IoError(std::io::Error::from(io.kind()))).into();
        }
    };
    Error::new(kind, format!("cannot read the Arrow file /{place}: {error}")).into()
}
