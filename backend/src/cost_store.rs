//! Measured costs of a device, or of the link between two, kept in the kernel store so that plans
//! are the same at each start.

use gristmill_runtime::Error;
use gristmill_runtime::store::{Key, Store};
use gristmill_uop::costs::Costs;
use gristmill_uop::machine::Machine;
use gristmill_uop::measured::{MAX_TEXT_BYTES, Measured};
use std::marker::PhantomData;

/// Entry of the kernel store with the costs of one device, or of the link between two.
pub struct CostStore<'a, C = Costs> {
    store: &'a Store,
    device: String,
    key: Key,
    costs: PhantomData<C>,
}

impl<'a, C: Measured> CostStore<'a, C> {
    /// Selects the entry of a device with a driver, both identified by unique text.
    pub fn new(store: &'a Store, device: &str, driver: &str) -> CostStore<'a, C> {
        let key = Key::from_parts([C::VERSION, env!("CARGO_PKG_VERSION"), device, driver]);
        CostStore {
            store,
            device: device.into(),
            key,
            costs: PhantomData,
        }
    }

    /// Reads the stored costs. An invalid entry is removed, with a warning, and counts as missing.
    pub fn read(&self) -> Option<C> {
        let bytes = self
            .store
            .get_within(&self.key, MAX_TEXT_BYTES as u64)
            .ok()??;
        let costs = std::str::from_utf8(&bytes).ok().and_then(C::parse);
        if costs.is_none() {
            self.store.remove(&self.key);
            self.warn("the stored calibration is invalid");
        }
        costs
    }

    /// Measures, rounds and stores the costs. It is an error if no figure is valid.
    ///
    /// # Errors
    /// Those of the measurement.
    pub fn renew(&self, measure: impl FnOnce() -> Result<C, Error>) -> Result<C, Error> {
        let costs = measure()?.rounded();
        if costs == C::default() {
            return Err(Error::NotMeasured {
                device: self.device.clone(),
                why: "no measured figure is valid".into(),
            });
        }
        self.store.put_or_warn(&self.key, costs.text().as_bytes());
        Ok(costs)
    }

    /// Returns the stored costs, or measures and stores them.
    ///
    /// Without a store the result is None, since the next start would measure different costs.
    /// Other failures are warnings.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn read_or_measure(
        &self,
        measure: impl FnOnce() -> Result<C, Error>,
    ) -> Result<Option<C>, Error> {
        if self.read().is_none() && self.store.path().is_some() {
            match self.renew(measure) {
                Err(error) if error.is_lost() => return Err(error),
                Err(error) => self.warn(&error.to_string()),
                Ok(_) => {}
            }
        }
        Ok(self.read())
    }

    fn warn(&self, why: &str) {
        self.store.warn(Error::NotMeasured {
            device: self.device.clone(),
            why: why.into(),
        });
    }
}

impl CostStore<'_> {
    /// Returns the machine with measured costs, if the table of machines lacks its row.
    ///
    /// The costs are read from the store or measured now.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn plan(
        &self,
        machine: Machine,
        measure: impl FnOnce() -> Result<Costs, Error>,
    ) -> Result<Machine, Error> {
        if !Costs::can_plan(&machine) {
            return Ok(machine);
        }
        Ok(self
            .read_or_measure(measure)?
            .map_or(machine.clone(), |costs| costs.plan(machine)))
    }

    /// Formats two lines for `gristmill devices`: the costs in use and the measured ones.
    ///
    /// For a machine without a row in the table, `unknown` says where the costs in use come from:
    /// after a measurement and before one.
    pub fn describe(&self, machine: &Machine, unknown: Option<[&str; 2]>) -> [String; 2] {
        let kept = self.read();
        let of = unknown.map_or(
            "of the table",
            |[after, before]| if kept.is_some() { after } else { before },
        );
        let measured = match kept {
            Some(costs) => format!("measured: {}", costs.text()),
            None => "not measured: run `gristmill devices --measure`".into(),
        };
        [
            format!("costs, {of}: {}", Costs::for_machine(machine).text()),
            measured,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::link::DeviceLink;

    const COSTS: Costs = Costs {
        bandwidth: Some(1e12),
        launch: Some(2e-6),
        latency: Some(1e-6),
        ..Costs::NONE
    };

    fn place(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("gristmill-{name}-{}", std::process::id()))
    }
    fn unknown() -> Machine {
        Machine {
            name: "sm_100".into(),
            ..Machine::named("h200").unwrap()
        }
    }
    fn never() -> Result<Costs, Error> {
        panic!("measured again")
    }

    #[test]
    fn measured_once_and_kept() {
        let place = place("costs");
        let store = Store::open(&place, 1 << 20).unwrap();
        let kept = CostStore::<Costs>::new(&store, "card", "driver 1");
        assert_eq!(kept.read(), None);
        let first = kept.plan(unknown(), || Ok(COSTS)).unwrap();
        assert_eq!(kept.plan(unknown(), never).unwrap(), first);
        assert_ne!(first, unknown());
        assert_eq!(
            CostStore::<Costs>::new(&store, "card", "driver 1").read(),
            Some(COSTS.rounded())
        );
        for (device, driver) in [
            ("other", "driver 1"),
            ("card", "driver 2"),
            ("carddriver", " 1"),
        ] {
            assert_eq!(
                CostStore::<Costs>::new(&store, device, driver).read(),
                None,
                "{device}, {driver}"
            );
        }
        // A link of the same devices is another entry.
        assert_eq!(
            CostStore::<DeviceLink>::new(&store, "card", "driver 1").read(),
            None
        );
        // A machine with a row in the table is not measured, and plans with its row.
        assert_eq!(
            kept.plan(Machine::named("l4").unwrap(), never).unwrap(),
            Machine::named("l4").unwrap()
        );
        assert!(store.warnings().is_empty());
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn an_unreadable_cost_is_a_warning() {
        let place = place("strange-costs");
        let store = Store::open(&place, 1 << 20).unwrap();
        let kept = CostStore::<Costs>::new(&store, "card", "driver");
        for text in [
            "launch 1e9 us".as_bytes(),
            b"\xff\xfe",
            b"",
            b"launch 1 us\n",
        ] {
            store.put(&kept.key, text).unwrap();
            assert_eq!(kept.read(), None);
            let warnings = store.warnings();
            assert!(
                matches!(&warnings[..], [Error::NotMeasured { .. }]),
                "{text:?}: {warnings:?}"
            );
            assert_eq!(store.get(&kept.key).unwrap(), None);
        }
        // The entry exceeds the size limit.
        store.put(&kept.key, &[b' '; 100_000]).unwrap();
        assert_eq!(kept.read(), None);
        assert_eq!(
            kept.plan(unknown(), || Ok(COSTS)).unwrap(),
            COSTS.rounded().plan(unknown())
        );
        std::fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn a_failed_measurement_warns_and_uses_the_table() {
        let place = place("no-costs");
        let store = Store::open(&place, 1 << 20).unwrap();
        let kept = CostStore::<Costs>::new(&store, "card", "driver");
        let failed = || Err(Error::invalid("a kernel", "as the test wants it"));
        assert_eq!(kept.plan(unknown(), failed).unwrap(), unknown());
        assert!(matches!(&store.warnings()[..], [Error::NotMeasured { .. }]));
        let strange = || {
            Ok(Costs {
                launch: Some(1.0),
                ..Costs::default()
            })
        };
        assert_eq!(kept.plan(unknown(), strange).unwrap(), unknown());
        assert!(matches!(&store.warnings()[..], [Error::NotMeasured { .. }]));
        let lost = || {
            Err(Error::Lost {
                device: "card".into(),
                what: "gone".into(),
                hint: String::new(),
            })
        };
        assert!(kept.plan(unknown(), lost).unwrap_err().is_lost());
        std::fs::remove_dir_all(place).unwrap();
        // Without a store the measured costs would differ at the next start, so they are not used.
        let nowhere = Store::without(Error::invalid("none", "none"));
        assert_eq!(
            CostStore::<Costs>::new(&nowhere, "card", "driver")
                .plan(unknown(), || Ok(COSTS))
                .unwrap(),
            unknown()
        );
    }
}
