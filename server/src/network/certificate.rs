//! What is read from certificates: the end of their validity, and the name of their subject (RFC 5280, section 4.1).

use yasna::models::ObjectIdentifier;
use yasna::tags::{TAG_PRINTABLESTRING, TAG_UTCTIME, TAG_UTF8STRING};
use yasna::{ASN1Result, BERReader, Tag};

/// Components of the identifier of a common name (CN) in the name of a subject.
const COMMON_NAME: [u64; 4] = [2, 5, 4, 3];

/// Fields of a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    /// End of its validity, in seconds since the Unix epoch.
    pub(super) not_after_unix_s: i64,
    /// Common name of its subject; `None` where it has none, or several.
    pub(super) common_name: Option<String>,
}

/// Reads a certificate in DER.
pub(super) fn read(der: &[u8]) -> ASN1Result<Certificate> {
    yasna::parse_der(der, |reader| {
        reader.read_sequence(|parts| {
            let certificate = parts.next().read_sequence(|fields| {
                fields.read_optional(|version| version.read_tagged(Tag::context(0), |version| version.read_der()))?;
                // Serial number, algorithm, issuer.
                for _ in 0..3 {
                    fields.next().read_der()?;
                }
                let not_after_unix_s = read_not_after(fields.next())?;
                let common_name = read_common_name(fields.next())?;
                while fields.read_optional(|field| field.read_der())?.is_some() {}
                Ok(Certificate { not_after_unix_s, common_name })
            })?;
            while parts.read_optional(|part| part.read_der())?.is_some() {}
            Ok(certificate)
        })
    })
}

fn read_not_after(validity: BERReader<'_, '_>) -> ASN1Result<i64> {
    validity.read_sequence(|fields| {
        fields.next().read_der()?;
        let end = fields.next();
        match end.lookahead_tag()? {
            TAG_UTCTIME => Ok(end.read_utctime()?.datetime().unix_timestamp()),
            _ => Ok(end.read_generalized_time()?.datetime().unix_timestamp()),
        }
    })
}

fn read_common_name(subject: BERReader<'_, '_>) -> ASN1Result<Option<String>> {
    let wanted = ObjectIdentifier::from_slice(&COMMON_NAME);
    let mut found = Vec::new();
    subject.read_sequence_of(|names| {
        names.read_set_of(|pair| {
            pair.read_sequence(|parts| {
                let kind = parts.next().read_oid()?;
                let value = parts.next();
                match value.lookahead_tag()? {
                    TAG_UTF8STRING if kind == wanted => found.push(value.read_utf8string()?),
                    TAG_PRINTABLESTRING if kind == wanted => found.push(value.read_printable_string()?),
                    _ => drop(value.read_der()?),
                }
                Ok(())
            })
        })
    })?;
    Ok(found.pop().filter(|_| found.is_empty()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rcgen::string::PrintableString;
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, DnValue)]) -> Certificate {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        read(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der()).unwrap()
    }

    #[test]
    fn the_end_and_the_common_name_are_read() {
        let company = (DnType::OrganizationName, DnValue::from("Terrace"));
        let ann = certificate(&[company.clone(), (DnType::CommonName, DnValue::from("ann"))]);
        assert_eq!(ann, Certificate { not_after_unix_s: 1_893_456_000, common_name: Some("ann".to_owned()) });
        let printable = DnValue::PrintableString(PrintableString::try_from("bob").unwrap());
        assert_eq!(certificate(&[(DnType::CommonName, printable)]).common_name.as_deref(), Some("bob"));
        assert_eq!(certificate(&[company]).common_name, None);
        assert!(read(b"no certificate").is_err());
    }
}
