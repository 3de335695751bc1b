//! Every class of malformed GGUF file is refused with the right error, and no input panics.

use gristmill_llm::gguf::{Error, Gguf};

/// A file assembled byte by byte, so that any field can be wrong.
#[derive(Clone)]
struct Raw {
    magic: [u8; 4],
    version: u32,
    tensors: Option<i64>,
    entries: Option<i64>,
    kv: Vec<Vec<u8>>,
    infos: Vec<Info>,
    alignment: usize,
    /// Zeros and data after the infos; cut or extended by tests.
    data: usize,
}

#[derive(Clone)]
struct Info {
    name: Vec<u8>,
    name_len: Option<u64>,
    rank: Option<u32>,
    dims: Vec<i64>,
    id: i32,
    offset: u64,
}

fn string(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes(), s].concat()
}
fn kv(key: &str, id: i32, value: &[u8]) -> Vec<u8> {
    [&string(key.as_bytes())[..], &id.to_le_bytes(), value].concat()
}
fn array(key: &str, element: i32, count: u64, data: &[u8]) -> Vec<u8> {
    kv(
        key,
        9,
        &[&element.to_le_bytes()[..], &count.to_le_bytes(), data].concat(),
    )
}
fn info(name: &str, dims: &[i64], id: i32, offset: u64) -> Info {
    Info {
        name: name.into(),
        name_len: None,
        rank: None,
        dims: dims.into(),
        id,
        offset,
    }
}

const F32: i32 = 0;
const Q4_0: i32 = 2;

/// A valid file with two keys and three tensors.
fn good() -> Raw {
    Raw {
        magic: *b"GGUF",
        version: 3,
        tensors: None,
        entries: None,
        kv: vec![
            kv("general.architecture", 8, &string(b"test")),
            kv("test.n", 4, &7u32.to_le_bytes()),
        ],
        infos: vec![
            info("a", &[4, 2], F32, 0),
            info("b", &[32, 3], Q4_0, 32),
            info("c", &[3], F32, 96),
        ],
        alignment: 32,
        data: 96 + 12,
    }
}

impl Raw {
    fn bytes(&self) -> Vec<u8> {
        let mut b = self.magic.to_vec();
        b.extend(self.version.to_le_bytes());
        b.extend(
            self.tensors
                .unwrap_or(self.infos.len() as i64)
                .to_le_bytes(),
        );
        b.extend(self.entries.unwrap_or(self.kv.len() as i64).to_le_bytes());
        b.extend(self.kv.concat());
        for i in &self.infos {
            b.extend(i.name_len.unwrap_or(i.name.len() as u64).to_le_bytes());
            b.extend(&i.name);
            b.extend(i.rank.unwrap_or(i.dims.len() as u32).to_le_bytes());
            i.dims.iter().for_each(|d| b.extend(d.to_le_bytes()));
            b.extend(i.id.to_le_bytes());
            b.extend(i.offset.to_le_bytes());
        }
        b.resize(b.len().next_multiple_of(self.alignment) + self.data, 0x11);
        b
    }
    fn open(&self) -> Result<Gguf, Error> {
        Gguf::from_bytes(self.bytes())
    }
}

macro_rules! refused {
    ($($(#[$doc:meta])* $name:ident: |$f:ident| $change:block => $error:pat $(if $guard:expr)?,)*) => { $(
        $(#[$doc])*
        #[test]
        fn $name() {
            let mut $f = good();
            $change
            match $f.open() {
                Err($error) $(if $guard)? => {}
                other => panic!("{other:?}"),
            }
        }
    )* };
}

#[test]
fn the_good_file_opens() {
    let f = good().open().unwrap();
    assert_eq!(f.tensors().len(), 3);
    assert_eq!(f.metadata().u32("test.n").unwrap(), Some(7));
    assert_eq!(f.architecture().unwrap(), "test");
}

refused! {
    // Header.
    bad_magic: |f| { f.magic = *b"GGML"; } => Error::BadMagic(m) if &m == b"GGML",
    version_0: |f| { f.version = 0; } => Error::Version(0),
    version_1: |f| { f.version = 1; } => Error::Version(1),
    version_future: |f| { f.version = 4; } => Error::Version(4),
    other_byte_order: |f| { f.version = 3u32.swap_bytes(); } => Error::OtherEndian(_),
    n_tensors_negative: |f| { f.tensors = Some(-1); } => Error::Count { what: "tensors", .. },
    n_tensors_too_large: |f| { f.tensors = Some(1000); } => Error::Count { what: "tensors", .. },
    n_tensors_overflows_struct_size: |f| { f.tensors = Some(i64::MAX / 8); } => Error::Count { what: "tensors", .. },
    n_tensors_min: |f| { f.tensors = Some(i64::MIN); } => Error::Count { .. },
    n_kv_negative: |f| { f.entries = Some(-1); } => Error::Count { what: "metadata keys", .. },
    n_kv_too_large: |f| { f.entries = Some(1000); } => Error::Count { what: "metadata keys", .. },
    n_kv_overflows_struct_size: |f| { f.entries = Some(i64::MAX); } => Error::Count { .. },
    n_kv_over_the_cap: |f| { f.entries = Some(1_000_001); f.data = 20 << 20; } => Error::Count { limit: 1_000_000, .. },

    // Keys and values.
    key_length_huge: |f| { f.kv[0][..8].copy_from_slice(&(1u64 << 40).to_le_bytes()); } => Error::TooLong { .. },
    key_length_plus_one_wraps: |f| { f.kv[0][..8].copy_from_slice(&u64::MAX.to_le_bytes()); } => Error::TooLong { .. },
    key_over_the_limit: |f| { f.kv[1] = kv(&"k".repeat(65_536), 4, &[0; 4]); } => Error::TooLong { limit: 65_535, .. },
    key_beyond_the_file: |f| { f.kv[1][..8].copy_from_slice(&60_000u64.to_le_bytes()); } => Error::Truncated { .. },
    key_empty: |f| { f.kv[1] = kv("", 4, &[0; 4]); } => Error::Empty { what: "metadata key" },
    key_not_utf8: |f| { f.kv[1][8] = 0xFF; } => Error::NotUtf8 { .. },
    key_duplicate: |f| { let again = f.kv[1].clone(); f.kv.push(again); } => Error::DuplicateKey(k) if k == "test.n",
    value_type_unknown: |f| { f.kv[1] = kv("k", 13, &[0; 8]); } => Error::ValueType { id: 13, .. },
    value_type_negative: |f| { f.kv[1] = kv("k", -1, &[0; 8]); } => Error::ValueType { id: -1, .. },
    value_type_unbounded: |f| { f.kv[1] = kv("k", i32::MAX, &[0; 8]); } => Error::ValueType { .. },
    string_value_beyond_the_file: |f| { f.kv[1] = kv("k", 8, &9999u64.to_le_bytes()); } => Error::Truncated { .. },
    string_value_over_the_cap: |f| { f.kv[1] = kv("k", 8, &(1u64 << 30).to_le_bytes()); } => Error::TooLong { .. },
    string_value_length_max: |f| { f.kv[1] = kv("k", 8, &u64::MAX.to_le_bytes()); } => Error::TooLong { .. },
    array_of_arrays: |f| { f.kv[1] = array("k", 9, 1, &[0; 32]); } => Error::NestedArray { .. },
    array_element_type_unknown: |f| { f.kv[1] = array("k", 13, 1, &[0; 8]); } => Error::ValueType { id: 13, .. },
    array_element_type_negative: |f| { f.kv[1] = array("k", -5, 1, &[0; 8]); } => Error::ValueType { id: -5, .. },
    array_longer_than_the_file: |f| { f.kv[1] = array("k", 4, 500, &[0; 8]); } => Error::ArrayLength { .. },
    array_count_times_size_wraps: |f| { f.kv[1] = array("k", 10, (1 << 61) + 1, &[0; 8]); } => Error::ArrayLength { .. },
    array_count_max: |f| { f.kv[1] = array("k", 0, u64::MAX, &[0; 8]); } => Error::ArrayLength { .. },
    array_of_strings_longer_than_the_file: |f| { f.kv[1] = array("k", 8, 500, &[0; 8]); } => Error::ArrayLength { .. },
    array_string_beyond_the_file: |f| { f.kv[1] = array("k", 8, 1, &5000u64.to_le_bytes()); } => Error::Truncated { .. },
    array_string_length_max: |f| { f.kv[1] = array("k", 8, 1, &u64::MAX.to_le_bytes()); } => Error::TooLong { .. },

    // Alignment.
    alignment_zero: |f| { f.kv[1] = kv("general.alignment", 4, &0u32.to_le_bytes()); } => Error::Alignment(_),
    alignment_not_a_power_of_two: |f| { f.kv[1] = kv("general.alignment", 4, &24u32.to_le_bytes()); } => Error::Alignment(_),
    alignment_of_another_integer_type: |f| { f.kv[1] = kv("general.alignment", 10, &32u64.to_le_bytes()); } => Error::Alignment(_),
    alignment_a_string: |f| { f.kv[1] = kv("general.alignment", 8, &string(b"32")); } => Error::Alignment(_),
    alignment_inconsistent_with_offsets: |f| { f.kv[1] = kv("general.alignment", 4, &64u32.to_le_bytes()); }
        => Error::Offset { found: 32, expected: 64, .. },
    alignment_beyond_the_file: |f| { f.kv[1] = kv("general.alignment", 4, &(1u32 << 31).to_le_bytes()); f.infos.truncate(1); }
        => Error::DataTruncated { .. },

    // Tensor infos.
    name_length_huge: |f| { f.infos[0].name_len = Some(u64::MAX); } => Error::TooLong { what: "tensor name", .. },
    name_of_64_bytes: |f| { f.infos[0].name = vec![b'a'; 64]; } => Error::TooLong { len: 64, limit: 63, .. },
    name_beyond_the_file: |f| { f.infos.truncate(1); f.infos[0].name_len = Some(63); f.data = 0; f.alignment = 1; } => Error::Truncated { .. },
    name_empty: |f| { f.infos[0].name.clear(); } => Error::Empty { what: "tensor name" },
    name_not_utf8: |f| { f.infos[0].name = vec![0xC0]; } => Error::NotUtf8 { .. },
    name_duplicate: |f| { f.infos[1].name = b"a".into(); } => Error::DuplicateTensor(n) if n == "a",
    n_dims_0: |f| { f.infos[0].dims.clear(); } => Error::Rank { rank: 0, .. },
    n_dims_5: |f| { f.infos[0].dims = vec![1; 5]; } => Error::Rank { rank: 5, .. },
    n_dims_max: |f| { f.infos[0].rank = Some(u32::MAX); } => Error::Rank { rank: u32::MAX, .. },
    dimension_negative: |f| { f.infos[0].dims = vec![4, -2]; } => Error::Dimension { axis: 1, size: -2, .. },
    dimension_zero: |f| { f.infos[0].dims = vec![0, 2]; } => Error::Dimension { axis: 0, size: 0, .. },
    elements_overflow_u64: |f| { f.infos[0].dims = vec![1 << 32, 1 << 32, 2]; } => Error::Overflow { what: "elements", .. },
    elements_wrap_to_a_small_number: |f| { f.infos[0].dims = vec![1 << 62, 4, 4, 1]; } => Error::Overflow { what: "elements", .. },
    elements_overflow_i64: |f| { f.infos[0].dims = vec![1 << 62, 2]; } => Error::Overflow { what: "elements", .. },
    bytes_overflow: |f| { f.infos[0].dims = vec![i64::MAX / 2]; } => Error::Overflow { what: "bytes", .. },
    /// F32 of SIZE_MAX/4 elements: the size fits u64 but its padding wraps to zero.
    padded_size_wraps: |f| { f.infos[0].dims = vec![(u64::MAX / 4) as i64]; } => Error::Overflow { what: "bytes", .. },
    /// Each tensor is possible, their sum is not (CVE-2025-53630).
    sum_of_sizes_overflows: |f| {
        let huge = 1i64 << 60;
        let bytes = 4 * huge as u64;
        f.infos = (0..5).map(|i| info(&format!("t{i}"), &[huge], F32, bytes.wrapping_mul(i))).collect();
    } => Error::Overflow { what: "bytes", .. },
    type_negative: |f| { f.infos[0].id = -1; } => Error::TypeId { id: -1, .. },
    type_min: |f| { f.infos[0].id = i32::MIN; } => Error::TypeId { .. },
    type_beyond_the_table: |f| { f.infos[0].id = 43; } => Error::TypeId { id: 43, .. },
    type_max: |f| { f.infos[0].id = i32::MAX; } => Error::TypeId { .. },
    type_removed: |f| { f.infos[0].id = 4; } => Error::TypeId { id: 4, .. },
    type_unsupported: |f| { f.infos[0].id = 41; } => Error::Unsupported { encoding: "q1_0", tensor } if tensor == "a",
    row_not_whole_blocks: |f| { f.infos[1].dims = vec![48, 2]; } => Error::PartialBlock { row: 48, .. },
    offset_misaligned: |f| { f.infos[1].offset = 33; } => Error::Offset { found: 33, expected: 32, .. },
    offset_with_a_hole: |f| { f.infos[1].offset = 64; } => Error::Offset { .. },
    offset_overlapping: |f| { f.infos[1].offset = 0; } => Error::Offset { .. },
    offset_max: |f| { f.infos[1].offset = u64::MAX - 31; } => Error::Offset { .. },
    first_offset_not_zero: |f| { f.infos[0].offset = 32; } => Error::Offset { expected: 0, .. },

    // Data.
    data_one_byte_short: |f| { f.data -= 1; } => Error::DataTruncated { tensor, .. } if tensor == "c",
    data_absent: |f| { f.data = 0; } => Error::DataTruncated { .. },
    shape_larger_than_the_data: |f| { f.infos[2].dims = vec![4000]; } => Error::DataTruncated { .. },
    shard_without_its_siblings: |f| {
        f.kv = vec![kv("split.no", 2, &[0; 2]), kv("split.count", 2, &[2, 0])];
    } => Error::Split(_),
    split_count_over_the_cap: |f| { f.kv = vec![kv("split.count", 4, &u32::MAX.to_le_bytes())]; } => Error::Split(_),
    split_count_a_string: |f| { f.kv = vec![kv("split.count", 8, &string(b"2"))]; } => Error::WrongType { .. },
}

#[test]
fn empty_file() {
    assert!(matches!(
        Gguf::from_bytes(&[][..]),
        Err(Error::Truncated { .. })
    ));
}

#[test]
fn version_2_is_accepted() {
    assert!(
        Raw {
            version: 2,
            ..good()
        }
        .open()
        .is_ok()
    );
}

#[test]
fn zeroes_left_by_a_merge_of_shards_are_accepted() {
    let mut f = good();
    f.kv.push(kv("split.count", 2, &[0, 0]));
    assert!(f.open().is_ok());
}

#[test]
fn every_supported_type_is_refused_when_short_of_data() {
    for id in (0..=42).filter(|&id| {
        matches!(
            gristmill_llm::gguf::types::encoding(id),
            gristmill_llm::gguf::types::TypeId::Known(_)
        )
    }) {
        let mut f = good();
        f.infos = vec![info("t", &[256, 2], id, 0)];
        f.data = 4 * 512;
        let bytes = f.open().unwrap().tensors()[0].bytes as usize;
        f.data = bytes;
        assert!(f.open().is_ok(), "type {id}");
        f.data = bytes - 1;
        assert!(
            matches!(f.open(), Err(Error::DataTruncated { .. })),
            "type {id}"
        );
    }
}

#[test]
fn errors_have_text_and_hints() {
    let short = Raw { data: 0, ..good() }.open().unwrap_err();
    assert!(short.hint().unwrap().contains("incomplete"), "{short}");
    let mut f = good();
    f.infos[0].id = 41;
    let unsupported = f.open().unwrap_err();
    assert_eq!(
        unsupported.to_string(),
        "tensor a has the unsupported encoding q1_0"
    );
    assert!(unsupported.hint().unwrap().contains("q4_0"));
}

/// A file with every kind of value, for the two tests that damage it at random.
fn varied() -> Vec<u8> {
    let mut f = good();
    f.kv.push(array(
        "strings",
        8,
        3,
        &[string(b"x"), string(b""), string(b"zz")].concat(),
    ));
    f.kv.push(array("floats", 6, 2, &[0; 8]));
    f.kv.push(kv("flag", 7, &[1]));
    f.kv.push(kv("general.alignment", 4, &32u32.to_le_bytes()));
    f.kv.push(kv("split.count", 2, &[1, 0]));
    f.bytes()
}

/// Opens a file and reads all of it. Must not panic; the result is ignored.
fn exercise(bytes: Vec<u8>) -> bool {
    let Ok(f) = Gguf::from_bytes(bytes) else {
        return false;
    };
    let _ = f.architecture();
    for (key, value) in f.metadata().iter() {
        let md = f.metadata();
        let _ = (
            value.to_string(),
            md.u32(key),
            md.f32(key),
            md.bool(key),
            md.str(key),
            md.ints(key),
            md.strings(key),
        );
        let _ = (md.per_layer(key, 3), md.floats(key));
    }
    for t in f.tensors() {
        let mut data = vec![0; t.bytes as usize];
        f.read_tensor(t, &mut data).unwrap();
    }
    true
}

#[test]
fn truncation_at_every_byte_is_an_error() {
    let whole = varied();
    for len in 0..whole.len() {
        assert!(!exercise(whole[..len].to_vec()), "{len}");
    }
    assert!(exercise(whole));
}

#[test]
fn random_damage_never_panics() {
    let whole = varied();
    let mut state = 0x1234_5678_9ABC_DEF1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let mut opened = 0;
    for _ in 0..60_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + next() % 4 {
            let at = next() % bytes.len();
            match next() % 4 {
                0 => bytes[at] ^= 1 << (next() % 8),
                1 => bytes[at] = next() as u8,
                2 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][next() % 5],
                // A whole word of ones or of the largest positive number.
                _ => {
                    let end = bytes.len().min(at + 8);
                    bytes[at..end].fill(0xFF);
                    bytes[end - 1] = [0xFF, 0x7F][next() % 2];
                }
            }
        }
        opened += usize::from(exercise(bytes));
    }
    assert!(
        opened > 1000,
        "damage so heavy that nothing was read: {opened}"
    );
}
