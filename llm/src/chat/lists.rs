//! Mutable lists of templates: `namespace(ids=[])`, then `ns.ids.append(…)` or `ns.ids.pop(0)`. All
//! other values are immutable.

use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{
    Enumerator, Object, ObjectRepr, Value, ValueKind, ValueOrKwargs, from_args,
};
use minijinja::{Error, ErrorKind, State};

/// A list that a template can modify.
#[derive(Debug)]
struct List(Mutex<Vec<Value>>);

impl List {
    fn with<T>(&self, change: impl FnOnce(&mut Vec<Value>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let index = key.as_usize()?;
        self.with(|items| items.get(index).cloned())
    }
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.with(|items| items.len()))
    }
    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        name: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        match name {
            "append" => {
                let (item,): (Value,) = from_args(args)?;
                self.with(|items| items.push(item));
                Ok(Value::from(()))
            }
            "pop" => {
                let (index,): (Option<i64>,) = from_args(args)?;
                let empty =
                    || Error::new(ErrorKind::InvalidOperation, "pop: there is no such item");
                self.with(|items| {
                    let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                    let index = index.unwrap_or(-1);
                    let at = if index < 0 { index + length } else { index };
                    let at = usize::try_from(at).ok().filter(|&at| at < items.len());
                    at.map(|at| items.remove(at)).ok_or_else(empty)
                })
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// Implements `namespace(…)` with mutable lists.
pub(super) fn namespace(defaults: Option<ValueOrKwargs>) -> Result<Value, Error> {
    let Some(defaults) = defaults.map(Value::from) else {
        return minijinja::functions::namespace(None);
    };
    if defaults.kind() != ValueKind::Map {
        return minijinja::functions::namespace(Some(defaults.into()));
    }
    let mut pairs = Vec::new();
    for key in defaults.try_iter()? {
        let value = defaults.get_item(&key)?;
        let value = match value.kind() {
            ValueKind::Seq => Value::from_object(List(Mutex::new(value.try_iter()?.collect()))),
            _ => value,
        };
        pairs.push((key.to_string(), value));
    }
    minijinja::functions::namespace(Some(Value::from_pairs(pairs).into()))
}
