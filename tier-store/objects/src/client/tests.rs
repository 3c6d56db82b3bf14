//! The client over an object store in memory; tests/python/test_homes.py has it over HTTP, with faults.

#![allow(clippy::unwrap_used)]

use object_store::memory::InMemory;
use terrace_model::ErrorKind;

use super::*;

fn client(url: &str) -> ObjectClient {
    ObjectClient::over(Arc::new(InMemory::new()), &ObjectAddress::parse(url).unwrap(), Duration::from_secs(1)).unwrap()
}

fn buffer(len: usize) -> AlignedBuffer {
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
    AlignedBuffer::copy_of(&bytes, 4096).unwrap()
}

fn read(client: &ObjectClient, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
    let mut read = Vec::new();
    client.read(name, range, &mut |piece: &[u8]| read.extend_from_slice(piece))?;
    Ok(read)
}

#[test]
fn objects_are_written_whole_or_in_parts_and_read_by_ranges() {
    for url in ["s3://bucket", "s3://bucket/some/prefix"] {
        let client = client(url);
        for len in [1, 4096, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 17] {
            let bytes = buffer(len);
            client.write("t1/c1-a.arrow", &bytes).unwrap();
            assert_eq!(client.find("t1/c1-a.arrow").unwrap().unwrap().bytes, len as u64);
            assert!(read(&client, "t1/c1-a.arrow", 0..len as u64).unwrap() == bytes.as_slice(), "{len}");
        }
        let bytes = buffer(2 * PART_BYTES + 17);
        let (start, end) = (PART_BYTES as u64 - 5, PART_BYTES as u64 + 5);
        let part = bytes.as_slice().get(start as usize..end as usize).unwrap();
        assert_eq!(read(&client, "t1/c1-a.arrow", start..end).unwrap(), part);
        assert_eq!(client.path("t1/c1-a.arrow").display().to_string(), format!("{url}/t1/c1-a.arrow"));
    }
}

#[test]
fn listings_name_what_lies_below_the_prefix_and_deletions_are_final() {
    let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let open = |url| {
        ObjectClient::over(Arc::clone(&store), &ObjectAddress::parse(url).unwrap(), Duration::from_secs(1)).unwrap()
    };
    let (whole, inside) = (open("s3://bucket"), open("s3://bucket/in"));
    inside.write("t1/c1.arrow", &buffer(10)).unwrap();
    inside.write("t1/c2.arrow", &buffer(20)).unwrap();
    whole.write("inside", &buffer(5)).unwrap();
    let names = |client: &ObjectClient| {
        let mut names: Vec<_> = client.list().unwrap().into_iter().map(|object| (object.name, object.bytes)).collect();
        names.sort();
        names
    };
    assert_eq!(names(&inside), [("t1/c1.arrow".to_owned(), 10), ("t1/c2.arrow".to_owned(), 20)]);
    assert_eq!(names(&whole).len(), 3);
    inside.remove(&["t1/c1.arrow".to_owned(), "t1/none.arrow".to_owned()]).unwrap();
    assert_eq!(names(&inside).len(), 1);
    assert_eq!(inside.find("t1/c1.arrow").unwrap(), None);
}

#[test]
fn an_object_is_created_once() {
    let client = client("s3://bucket/home");
    assert!(client.create("marker", b"first").unwrap());
    assert!(!client.create("marker", b"second").unwrap());
    assert_eq!(read(&client, "marker", 0..5).unwrap(), b"first");
}

#[test]
fn what_is_missing_or_ends_early_is_told() {
    let client = client("s3://bucket/home");
    let error = read(&client, "none", 0..5).unwrap_err();
    assert!(matches!(error, Error::Io { errno: Some(libc::ENOENT), .. }), "{error}");
    client.write("short", &buffer(10)).unwrap();
    assert_eq!(read(&client, "short", 4..100).unwrap().len(), 6);
    assert_eq!(read(&client, "short", 50..100).unwrap().len(), 0, "it ends before the range");
    assert_eq!(read(&client, "short", 5..5).unwrap().len(), 0, "nothing is asked for");
    assert_eq!(client.find("../outside").unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn calls_may_come_from_a_thread_of_another_runtime() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.block_on(async {
        let client = client("s3://bucket/home");
        client.write("object", &buffer(10)).unwrap();
        assert_eq!(read(&client, "object", 0..10).unwrap().len(), 10);
    });
}

#[test]
fn a_store_without_room_is_told_from_one_that_fails() {
    let client = client("s3://bucket/home");
    let answer = |text: &str| StoreError::Generic { store: "S3", source: text.into() };
    let kind = |text: &str| client.failed("write", "object", &answer(text)).kind();
    assert_eq!(kind("status code: 507 Insufficient Storage"), ErrorKind::ResourceExhausted);
    assert_eq!(kind("<Code>QuotaExceeded</Code>"), ErrorKind::ResourceExhausted);
    let failing = client.failed("write", "object", &answer("status code: 503 Slow Down"));
    assert!(failing.kind() == ErrorKind::Internal && failing.is_device_fault());
    assert!(may_pass(&answer("status code: 503")) && !may_pass(&answer("status code: 400 Bad Request")));
}

#[test]
fn errors_have_no_more_of_an_answer_than_its_code_and_message() {
    let client = client("s3://bucket/home");
    let answer = "Error performing PUT http://here/bucket/home/o in 3ms - Server returned non-2xx status code: 400 Bad Request: \
                  <?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code><Message>The token has expired.</Message>\
                  <Token-0>very secret</Token-0></Error>";
    let error = client.failed("write", "o", &StoreError::Generic { store: "S3", source: answer.into() }).to_string();
    assert!(error.ends_with("400 Bad Request: ExpiredToken: The token has expired."), "{error}");
    let page = StoreError::Generic { store: "S3", source: "status code: 502 Bad Gateway: <html>sorry</html>".into() };
    assert!(client.failed("read", "o", &page).to_string().ends_with("502 Bad Gateway:"));
    let plain = StoreError::Generic { store: "S3", source: "no route".into() };
    assert!(client.failed("read", "o", &plain).to_string().ends_with("no route"));
    assert_eq!(format!("{client:?}"), "ObjectClient { url: \"s3://bucket/home\", .. }");
}

#[test]
fn an_answer_that_is_longer_than_its_range_is_refused() {
    let piece = Bytes::from_static(&[1; 10]);
    assert_eq!(left_after(25, &piece).unwrap(), 15);
    assert_eq!(left_after(10, &piece).unwrap(), 0);
    assert!(left_after(9, &piece).unwrap_err().to_string().contains("longer than the range"));
}
