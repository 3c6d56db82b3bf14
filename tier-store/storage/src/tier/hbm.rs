//! The HBM tier: memory of a device that runs kernels, for second copies of segments.
//!
//! An image on a device stands beside the copy, or the home, that processors read; it is never the only one. So the tier is
//! not one of the memory tiers: nothing that processors read lies here, losing the device loses nothing, and dropping an image
//! needs no I/O. The bytes of an image are charged before they are copied, and the charge ends with its last owner.
//!
//! An image has the values as they are stored: integers, decimals, dates and times of up to 64 bits, or the keys of a
//! dictionary, whose values the segment's encoding knows. Other columns have none.

use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use arrow::array::Array;
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use parking_lot::Mutex;
pub use terrace_device as device;
use terrace_device::Device;
pub use terrace_device::Rates as DeviceRates;
use terrace_device::column::{ColumnData, DeviceColumn, Form, Values};
use terrace_device::cuda::CudaDevice;
pub use terrace_device::faults::FaultRates;
use terrace_device::faults::Faults;
use terrace_device::host::{HostDevice, HostOptions};
use terrace_device::memory::ALIGNMENT;
use terrace_model::clock::Clock;
use terrace_model::{Account, Charge, Error, Result};

use super::codec::StoredColumn;
use crate::table::{Segment, SegmentHome};

/// Faults of an emulated device, for tests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceFaults {
    /// The seed that they are drawn from.
    pub seed: u64,
    /// How often operations fail.
    pub rates: FaultRates,
}

/// Where the memory of an HBM tier is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HbmBacking {
    /// The NVIDIA GPU of this number.
    Cuda(u32),
    /// The host device: memory of the process, and the kernels on its processors.
    Emulated {
        /// Bytes of its memory.
        capacity_bytes: u64,
        /// Faults, for tests.
        faults: Option<DeviceFaults>,
    },
}

/// A device's memory as a tier.
#[derive(Debug)]
pub struct HbmTier {
    account: Arc<Account>,
    device: Arc<dyn Device>,
    /// Bytes that were free when the tier was opened: the largest budget.
    free_bytes: u64,
    /// What was seen when the device stopped to answer.
    lost: OnceLock<String>,
    rates: Mutex<Option<DeviceRates>>,
}

/// The image of a segment in the memory of a device. Whoever launches kernels over it keeps it until they have ended.
#[derive(Debug)]
pub struct DeviceImage {
    /// Its values.
    pub column: Arc<DeviceColumn>,
    /// Ends after the memory is given back.
    charge: Charge,
}

impl DeviceImage {
    /// Bytes that it is charged.
    pub fn charged_bytes(&self) -> u64 {
        self.charge.bytes()
    }
}

impl HbmTier {
    /// Opens a device as a tier of this name. Its budget is `budget_bytes`, at most what is free; `None`: four fifths of that.
    /// The driver is loaded here, and nowhere else.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such device, or no driver for it.
    pub fn open(name: &str, backing: HbmBacking, budget_bytes: Option<u64>) -> Result<Self> {
        let device: Arc<dyn Device> = match backing {
            HbmBacking::Cuda(number) => Arc::new(CudaDevice::open(number).map_err(|error| device_error(name, error))?),
            HbmBacking::Emulated { capacity_bytes: memory_bytes, faults } => {
                let faults = faults.map(|DeviceFaults { seed, rates }| Faults::new(seed, rates));
                Arc::new(HostDevice::new(HostOptions { memory_bytes, faults, ..HostOptions::default() }))
            }
        };
        Self::new(name, device, budget_bytes)
    }

    /// The tier of a device that is open; see [`HbmTier::open`].
    ///
    /// # Errors
    /// When the device does not say how much of its memory is free.
    pub fn new(name: &str, device: Arc<dyn Device>, budget_bytes: Option<u64>) -> Result<Self> {
        let free_bytes = device.free_bytes().map_err(|error| device_error(name, error))?;
        let budget_bytes = budget_bytes.unwrap_or(free_bytes / 5 * 4).min(free_bytes);
        let account = Account::new(name, budget_bytes);
        Ok(Self { account, device, free_bytes, lost: OnceLock::new(), rates: Mutex::default() })
    }

    /// The name shown to users.
    pub fn name(&self) -> &str {
        self.account.name()
    }

    /// The account that holds the budget and the bytes of images.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// The device, for launches.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// True when the processor only stands for a device.
    pub fn emulated(&self) -> bool {
        self.device.properties().emulated
    }

    /// One line about the device; it says when that is lost.
    pub fn describe(&self) -> String {
        let properties = self.device.properties();
        let of = if properties.emulated { "emulated by " } else { "" };
        let lost = self.lost().map_or_else(String::new, |why| format!(", lost: {why}"));
        format!("{of}{}, {}, {} bytes{lost}", properties.name, properties.driver, properties.memory_bytes)
    }

    /// The largest budget that it may have.
    pub fn most_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// What was seen when the device stopped to answer; `None` while it works. A lost device does not come back.
    pub fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// What the device does, as it was measured last; measures it at the first call.
    pub fn rates(&self, clock: &dyn Clock) -> DeviceRates {
        // Not under the lock, for which statements would wait while the device is measured.
        let known = *self.rates.lock();
        known.unwrap_or_else(|| self.calibrate(clock))
    }

    /// What the device does, as it was measured last; typical rates before that.
    pub fn last_rates(&self) -> DeviceRates {
        self.rates.lock().unwrap_or(DeviceRates::TYPICAL)
    }

    /// Measures the device anew, while nothing else uses it.
    pub fn calibrate(&self, clock: &dyn Clock) -> DeviceRates {
        let measured = self.measured(clock);
        *self.rates.lock() = Some(measured);
        measured
    }

    /// The rates of the device; typical ones where they cannot be measured.
    fn measured(&self, clock: &dyn Clock) -> DeviceRates {
        DeviceRates::measure(self.device.as_ref(), clock).unwrap_or_else(|error| {
            let error = self.noted(error);
            tracing::warn!(tier = self.name(), %error, "a device could not be measured; its rates are those of a typical one");
            DeviceRates::TYPICAL
        })
    }

    /// Maps an error of the device, and remembers when it is lost.
    pub fn noted(&self, error: terrace_device::Error) -> Error {
        if let terrace_device::Error::Lost { message, .. } = &error {
            let why = self.lost.get_or_init(|| message.clone());
            tracing::debug!(tier = self.name(), why, "the device is lost");
        }
        self.mapped(error)
    }

    fn mapped(&self, error: terrace_device::Error) -> Error {
        match error {
            // Other processes may use the device, too.
            terrace_device::Error::OutOfMemory { asked_bytes, .. } => Error::BudgetExceeded {
                account: self.name().to_owned(),
                asked_bytes,
                used_bytes: self.account.used_bytes(),
                limit_bytes: self.account.limit_bytes(),
            },
            error => device_error(self.name(), error),
        }
    }

    /// Charges an image, and copies the values of a segment to the device. `column` has all rows of the segment.
    ///
    /// # Errors
    /// [`Error::BudgetExceeded`] when it does not fit, [`Error::Unsupported`] for a column that has no image,
    /// [`Error::Io`] when the device fails.
    pub fn store(&self, segment: &Segment, declared: &DataType, column: &StoredColumn) -> Result<DeviceImage> {
        let rows = column.rows();
        let bytes = image_bytes(&segment.home, declared, rows as u32).ok_or_else(|| no_image(declared))?;
        let charge = self.account.try_charge(bytes)?;
        let keys = column.keys(0, rows).map(|(_, keys)| keys);
        let array = keys.or_else(|| column.stored_values(0, rows)).ok_or_else(|| no_image(declared))?;
        let form = form_of(array.data_type()).ok_or_else(|| no_image(declared))?;
        let data = array.to_data();
        let start = data.offset() * form.width();
        let buffer = data.buffers().first().map_or(&[][..], |buffer| buffer.as_slice());
        let values = buffer.get(start..start + rows * form.width()).ok_or_else(|| no_image(declared))?;
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        let bitmap = nulls.map(|nulls| nulls.inner().sliced());
        let validity = bitmap.as_ref().map(|bitmap| bitmap.as_slice());
        let range = bounds(form, values, nulls);
        let data = ColumnData { rows: rows as u32, values: Values::Plain(form, values), validity, range };
        let column = DeviceColumn::upload(self.device.as_ref(), &data).map_err(|error| self.noted(error))?;
        Ok(DeviceImage { column: Arc::new(column), charge })
    }
}

/// Bytes that the image of a segment is charged; `None` for a column that has none.
pub fn image_bytes(home: &SegmentHome, declared: &DataType, rows: u32) -> Option<u64> {
    let form = form_of(&home.encoding.stored_type(declared))?;
    let rows = u64::from(rows);
    let has_nulls = home.layout.nodes.first().is_some_and(|(_, nulls)| *nulls > 0);
    let validity_bytes = if has_nulls { rows.div_ceil(8).next_multiple_of(16) } else { 0 };
    let bytes = (rows * form.width() as u64).next_multiple_of(16) + validity_bytes;
    Some(bytes.max(1).next_multiple_of(ALIGNMENT as u64))
}

/// How the kernels read values of a type; `None` where they do not.
fn form_of(stored: &DataType) -> Option<Form> {
    Some(match stored {
        DataType::Int8 => Form::I8,
        DataType::UInt8 => Form::U8,
        DataType::Int16 => Form::I16,
        DataType::UInt16 => Form::U16,
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Decimal32(..) => Form::I32,
        DataType::UInt32 => Form::U32,
        DataType::Int64
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Decimal64(..) => Form::I64,
        _ => return None,
    })
}

/// The least and the greatest of the values that are not null.
fn bounds(form: Form, values: &[u8], nulls: Option<&NullBuffer>) -> RangeInclusive<i64> {
    match form {
        Form::I8 => bounds_of(values, nulls, |[value]: [u8; 1]| i64::from(value as i8)),
        Form::U8 => bounds_of(values, nulls, |[value]: [u8; 1]| i64::from(value)),
        Form::I16 => bounds_of(values, nulls, |value| i64::from(i16::from_le_bytes(value))),
        Form::U16 => bounds_of(values, nulls, |value| i64::from(u16::from_le_bytes(value))),
        Form::I32 => bounds_of(values, nulls, |value| i64::from(i32::from_le_bytes(value))),
        Form::U32 => bounds_of(values, nulls, |value| i64::from(u32::from_le_bytes(value))),
        Form::I64 => bounds_of(values, nulls, i64::from_le_bytes),
    }
}

fn bounds_of<const N: usize>(
    values: &[u8],
    nulls: Option<&NullBuffer>,
    number: impl Fn([u8; N]) -> i64,
) -> RangeInclusive<i64> {
    let (values, _) = values.as_chunks::<N>();
    let known = values.iter().enumerate().filter(|(row, _)| nulls.is_none_or(|nulls| nulls.is_valid(*row)));
    let numbers = known.map(|(_, value)| number(*value));
    let (low, high) = numbers.fold((i64::MAX, i64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    low..=high
}

fn no_image(declared: &DataType) -> Error {
    Error::Unsupported(format!("an image of a column of type {declared} in the memory of a device"))
}

/// An error of a device as an error of the tier of this name.
fn device_error(name: &str, error: terrace_device::Error) -> Error {
    let errno = match &error {
        terrace_device::Error::Lost { .. } | terrace_device::Error::Unavailable { .. } => libc::ENODEV,
        terrace_device::Error::Unsupported(what) => return Error::Unsupported(what.clone()),
        terrace_device::Error::Invalid(what) => return Error::Invalid(what.clone()),
        _ => libc::EIO,
    };
    Error::Io { action: "use", path: name.into(), errno: Some(errno), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use crate::migrate::testing::{FIRST_ID, FakeHome, ROWS};
    use crate::table::Chunk;
    use crate::tier::HomeTier;

    fn emulated(capacity_bytes: u64) -> HbmTier {
        HbmTier::open("hbm", HbmBacking::Emulated { capacity_bytes, faults: None }, None).unwrap()
    }

    fn column(home: &FakeHome, chunk: &Arc<Chunk>, at: usize) -> StoredColumn {
        let read = HomeTier::read(home, chunk, &[at]).unwrap().remove(0);
        let declared = chunk.data_type(at).unwrap();
        StoredColumn::decode_plain(&chunk.segments[at].home, declared, ROWS, &read.bytes.unwrap()).unwrap()
    }

    #[test]
    fn an_image_has_the_values_and_is_charged_while_somebody_has_it() {
        let home = FakeHome::default();
        let chunk = home.add(1, 2);
        let tier = emulated(1 << 20);
        assert_eq!((tier.account().limit_bytes(), tier.most_bytes()), ((1 << 20) / 5 * 4, 1 << 20));
        let declared = chunk.data_type(0).unwrap();
        let image = tier.store(&chunk.segments[0], declared, &column(&home, &chunk, 0)).unwrap();
        assert_eq!(image.column.range(), FIRST_ID + 2000..=FIRST_ID + 2999);
        assert_eq!(u64::from(image.column.rows()), ROWS as u64);
        let bytes = image_bytes(&chunk.segments[0].home, declared, ROWS as u32).unwrap();
        assert!(bytes >= image.column.bytes() && bytes - image.column.bytes() < 256);
        assert_eq!((image.charged_bytes(), tier.account().used_bytes()), (bytes, bytes));
        drop(image);
        assert_eq!(tier.account().used_bytes(), 0);
        assert_eq!(tier.device().free_bytes().unwrap(), 1 << 20);
    }

    #[test]
    fn what_does_not_fit_or_has_no_image_is_refused() {
        let home = FakeHome::default();
        let chunk = home.add(1, 1);
        let tier = emulated(4096);
        let ids = column(&home, &chunk, 0);
        let declared = chunk.data_type(0).unwrap();
        let error = tier.store(&chunk.segments[0], declared, &ids).unwrap_err();
        assert!(matches!(error, Error::BudgetExceeded { .. }), "{error}");
        // The device is fuller than the account knows: others use it, too.
        let shared = HbmTier::new("hbm", Arc::clone(tier.device()), None).unwrap();
        shared.account().set_limit_bytes(1 << 20);
        assert!(matches!(shared.store(&chunk.segments[0], declared, &ids), Err(Error::BudgetExceeded { .. })));
        assert_eq!(shared.account().used_bytes(), 0);
        assert!(image_bytes(&SegmentHome::default(), &DataType::Float64, 10).is_none());
        assert!(image_bytes(&SegmentHome::default(), &DataType::Utf8View, 10).is_none());
    }

    #[test]
    fn a_lost_device_is_remembered_and_its_memory_is_charged_no_more() {
        let home = FakeHome::default();
        let chunk = home.add(1, 1);
        let rates = FaultRates { lost: 1.0, ..FaultRates::default() };
        let device = HostDevice::new(HostOptions { faults: Some(Faults::new(1, rates)), ..HostOptions::default() });
        // It is lost as soon as it is asked for anything.
        assert!(HbmTier::new("hbm", Arc::new(device), None).unwrap_err().is_device_fault());
        let rates = FaultRates { lost: 0.3, ..FaultRates::default() };
        let lost = (0..200).find_map(|seed| {
            let faults = Some(Faults::new(seed, rates));
            let device = Arc::new(HostDevice::new(HostOptions { faults, ..HostOptions::default() }));
            let tier = HbmTier::new("hbm", device, None).ok()?;
            let declared = chunk.data_type(0).unwrap();
            let error = tier.store(&chunk.segments[0], declared, &column(&home, &chunk, 0)).err()?;
            Some((tier, error))
        });
        let (tier, error) = lost.unwrap();
        assert!(error.is_device_fault() && error.to_string().contains("is lost"), "{error}");
        assert!(tier.lost().is_some());
        assert_eq!(tier.account().used_bytes(), 0);
    }

    #[test]
    fn a_missing_gpu_is_an_error_that_says_so() {
        let error = HbmTier::open("hbm", HbmBacking::Cuda(63), None).unwrap_err();
        assert!(error.is_device_fault() && error.to_string().contains("cuda:63"), "{error}");
    }
}
