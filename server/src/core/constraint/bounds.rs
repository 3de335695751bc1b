//! Size limits of JSON schemas. The compiler cannot be interrupted, its stack use grows with the
//! nesting depth, and some of its steps take quadratic time: schemas that would take seconds are
//! refused before they are compiled.

use serde_json::{Map, Value};
use std::collections::HashSet;

/// Maximum nesting of JSON values in the compiler: a chain of 1,000 references is 6,000 levels deep
/// and takes up to 16 MiB of its stack.
const MAX_LEVELS: usize = 8_000;
/// Stack of the compiler's thread in bytes, with a margin over [`MAX_LEVELS`]. Only touched pages
/// take memory.
pub const STACK: usize = 64 << 20;
/// Maximum JSON values in total: an enumeration of 10,000 takes a quarter of a second.
const MAX_VALUES: usize = 50_000;
/// Maximum sum of the squared property counts of all objects, as the time is quadratic. This allows
/// one object of 1,000 properties; one of 2,000 takes 2 s.
const MAX_SQUARED_PROPERTIES: usize = 1_000_000;
/// Maximum properties of an object with `minProperties` or `maxProperties`: the time is cubic.
const MAX_COUNTED_PROPERTIES: usize = 64;
/// Maximum alternatives of all `oneOf`, which are compared pairwise: 20,000 take 6 s.
const MAX_ALTERNATIVES: usize = 2_000;
/// Maximum `patternProperties`, which are intersected pairwise: 300 take 26 s.
const MAX_PATTERNS: usize = 32;
/// Maximum properties of an object, and maximum `patternProperties`, in a schema that intersects
/// schemas, as intersection multiplies them.
const MAX_COMBINED: (usize, usize) = (200, 1);
/// Maximum sum, over the schemas that intersect, of the products of their alternatives. This allows
/// 24 alternatives in groups of three, which is the grouping with the largest product.
const MAX_ALTERNATIVE_PRODUCT: usize = 3_usize.pow(8);
/// Maximum `pattern` in a schema that intersects schemas: 30 intersected ones take over a minute.
const MAX_COMBINED_REGEXES: usize = 16;
/// Annotation keywords, which take no part in intersections.
const ANNOTATION_KEYWORDS: [&str; 12] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
    "$id",
    "$defs",
    "definitions",
];

/// Returns whether the schema has references. Without any it cannot be circular.
pub fn refers(schema: &Value) -> bool {
    match schema {
        Value::Array(entries) => entries.iter().any(refers),
        Value::Object(members) => members.contains_key("$ref") || members.values().any(refers),
        _ => false,
    }
}

/// Counts of the schemas of one request.
#[derive(Default)]
pub struct Tally<'s> {
    values: usize,
    depth: usize,
    references: HashSet<&'s str>,
    squares: usize,
    alternatives: usize,
    patterns: usize,
    /// Sum of the products of alternatives over the schemas that intersect.
    products: usize,
    /// Property count of the last object that exceeds its limit, and the limit.
    most: Option<(usize, usize)>,
    combined_patterns: usize,
    /// Maximum `pattern` of a schema that intersects schemas.
    combined_regexes: usize,
}

/// Counts of one schema.
#[derive(Default)]
struct SchemaCounts {
    properties: usize,
    /// Largest property count of an object with `minProperties` or `maxProperties`.
    counted: usize,
    alternatives: usize,
    patterns: usize,
    /// Number of `pattern` keywords, each a regular expression.
    regexes: usize,
    combines: bool,
    /// Whether `minProperties` or `maxProperties` is combined with another schema, and so counts
    /// that schema's properties.
    counts: bool,
}

impl<'s> Tally<'s> {
    /// Adds a schema. Values that merely look like keywords are counted, too.
    pub fn add(&mut self, schema: &'s Value) {
        let mut one = SchemaCounts::default();
        self.walk(schema, 1, &mut one);
        self.alternatives += one.alternatives;
        self.patterns += one.patterns;
        if one.combines {
            // The largest product of `alternatives` in groups is that of groups of three.
            let groups = u32::try_from(one.alternatives.div_ceil(3)).unwrap_or(u32::MAX);
            self.products = self.products.saturating_add(3_usize.saturating_pow(groups));
            self.combined_patterns = self.combined_patterns.max(one.patterns);
            self.combined_regexes = self.combined_regexes.max(one.regexes);
            self.bound(one.properties, MAX_COMBINED.0);
        }
        self.bound(
            if one.counts {
                one.properties
            } else {
                one.counted
            },
            MAX_COUNTED_PROPERTIES,
        );
    }
    /// Records an object that has more properties than its limit.
    fn bound(&mut self, properties: usize, most: usize) {
        if properties > most {
            self.most = Some((properties, most));
        }
    }
    fn walk(&mut self, value: &'s Value, depth: usize, one: &mut SchemaCounts) {
        self.values += 1;
        self.depth = self.depth.max(depth);
        match value {
            Value::Array(entries) => entries
                .iter()
                .for_each(|entry| self.walk(entry, depth + 1, one)),
            Value::Object(members) => {
                intersect(members, one);
                for (key, member) in members {
                    self.keyword(key, member, one);
                    self.walk(member, depth + 1, one);
                }
            }
            _ => {}
        }
    }
    fn keyword(&mut self, key: &str, member: &'s Value, one: &mut SchemaCounts) {
        let properties = match (key, member) {
            ("$ref", Value::String(target)) => {
                self.references.insert(target);
                return;
            }
            ("oneOf", Value::Array(alternatives)) => {
                one.alternatives += alternatives.len();
                return;
            }
            ("patternProperties", Value::Object(patterns)) => {
                one.patterns += patterns.len();
                return;
            }
            ("pattern", Value::String(_)) => {
                one.regexes += 1;
                return;
            }
            ("properties", Value::Object(properties)) => properties.len(),
            ("required", Value::Array(names)) => names.len(),
            _ => return,
        };
        one.properties = one.properties.max(properties);
        self.squares = self
            .squares
            .saturating_add(properties.saturating_mul(properties));
    }
    /// Checks that the schemas compile in about a second, within [`STACK`].
    ///
    /// # Errors
    /// A description of the first count that exceeds its limit.
    pub fn check(&self) -> Result<(), String> {
        // A reference's target is expanded once, in place, so each target may nest within every
        // other one.
        let levels = self.depth * (1 + self.references.len());
        let (properties, most) = self.most.unwrap_or_default();
        for (name, count, most) in [
            ("values", self.values, MAX_VALUES),
            ("levels of nesting and references", levels, MAX_LEVELS),
            (
                "as the sum of the squared property counts of its objects",
                self.squares,
                MAX_SQUARED_PROPERTIES,
            ),
            (
                "properties in an object that is combined with others or limits their number",
                properties,
                most,
            ),
            (
                "alternatives of oneOf (use anyOf if possible)",
                self.alternatives,
                MAX_ALTERNATIVES,
            ),
            (
                "combinations of alternatives (by allOf, or $ref with other keywords)",
                self.products,
                MAX_ALTERNATIVE_PRODUCT,
            ),
            ("patternProperties", self.patterns, MAX_PATTERNS),
            (
                "patternProperties in combined schemas",
                self.combined_patterns,
                MAX_COMBINED.1,
            ),
            (
                "patterns where schemas are combined (allOf, or $ref beside others)",
                self.combined_regexes,
                MAX_COMBINED_REGEXES,
            ),
        ] {
            if count > most {
                return Err(format!("it has {count} {name}; the limit is {most}"));
            }
        }
        Ok(())
    }
}

/// Records whether an object of a schema intersects schemas. A member with a keyword's name and
/// another type is not a keyword, as properties may have any names.
fn intersect(members: &Map<String, Value>, one: &mut SchemaCounts) {
    let list = |key: &str| members.get(key).and_then(Value::as_array).map(Vec::len);
    let alone = |key: &str| {
        members
            .keys()
            .all(|it| it == key || ANNOTATION_KEYWORDS.contains(&it.as_str()))
    };
    let refers = members.get("$ref").is_some_and(Value::is_string);
    let applied = ["allOf", "anyOf", "oneOf"]
        .iter()
        .filter(|key| list(key).is_some())
        .count()
        + usize::from(refers);
    one.combines |= applied > 1 || list("allOf").is_some_and(|n| n > 1 || !alone("allOf"));
    if ["minProperties", "maxProperties"]
        .iter()
        .any(|key| members.get(*key).is_some_and(Value::is_number))
    {
        one.counts |= applied > 0;
        let own = members
            .get("properties")
            .and_then(Value::as_object)
            .map_or(0, Map::len);
        let required = list("required").unwrap_or(0);
        one.counted = one.counted.max(own).max(required);
    }
}
