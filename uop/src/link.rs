//! Costs of handing values from one device to another.

use crate::measured::{Measured, Quantity};

/// Measured costs of the link between a device with its own memory and another one that uses the
/// host's. Kernels do not depend on it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DeviceLink {
    /// Bytes per second of copies from pinned host memory to the device.
    pub upload: Option<f64>,
    /// Bytes per second of copies from the device to pinned host memory.
    pub download: Option<f64>,
    /// Seconds of handing a few rows to the other device and taking the result back: a small kernel
    /// on each, a copy each way, and two waits.
    pub handover: Option<f64>,
}

impl DeviceLink {
    /// Costs of a link that was not measured: PCIe 4.0 with 16 lanes, and hand-overs between an
    /// H200 and its host, which take 60 to 75 µs (docs/experiments/146).
    pub const ASSUMED: DeviceLink = DeviceLink {
        upload: Some(25e9),
        download: Some(25e9),
        handover: Some(65e-6),
    };
    /// Bytes per second below which a link is slow: PCIe 4.0 with 4 lanes carries 7 to 8 GB/s, and
    /// with 16 lanes 25.
    pub const SLOW: f64 = 6e9;

    /// Returns the seconds of copying bytes to the device, or [`DeviceLink::ASSUMED`]'s.
    pub fn upload_seconds(&self, bytes: f64) -> f64 {
        bytes / self.or_assumed(|of| of.upload)
    }
    /// Returns the seconds of copying bytes from the device, or [`DeviceLink::ASSUMED`]'s.
    pub fn download_seconds(&self, bytes: f64) -> f64 {
        bytes / self.or_assumed(|of| of.download)
    }
    /// Returns the seconds of a hand-over, or [`DeviceLink::ASSUMED`]'s.
    pub fn handover_seconds(&self) -> f64 {
        self.or_assumed(|of| of.handover)
    }
    fn or_assumed(&self, cost: impl Fn(&DeviceLink) -> Option<f64>) -> f64 {
        cost(self).or(cost(&DeviceLink::ASSUMED)).unwrap_or(1.0)
    }
    /// Returns whether a direction was measured and is [`DeviceLink::SLOW`].
    pub fn is_slow(&self) -> bool {
        let rates = [self.upload, self.download];
        rates.into_iter().flatten().any(|rate| rate < Self::SLOW)
    }
}

impl Measured for DeviceLink {
    const VERSION: &'static str = "link 1";
    const QUANTITIES: &'static [Quantity<DeviceLink>] = &[
        Quantity {
            name: "upload",
            unit: "GB/s",
            scale: 1e9,
            bounds: [1e-3, 1e5],
            field: |of| &mut of.upload,
        },
        Quantity {
            name: "download",
            unit: "GB/s",
            scale: 1e9,
            bounds: [1e-3, 1e5],
            field: |of| &mut of.download,
        },
        Quantity {
            name: "hand-over",
            unit: "us",
            scale: 1e-6,
            bounds: [0.01, 1e5],
            field: |of| &mut of.handover,
        },
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_a_text_and_assumed_costs() {
        let link = DeviceLink {
            upload: Some(5.44e9),
            download: Some(f64::INFINITY),
            handover: Some(123e-6),
        };
        let rounded = link.rounded();
        assert_eq!(rounded.text(), "upload 5.4 GB/s, hand-over 120 us");
        assert_eq!(DeviceLink::parse(&rounded.text()), Some(rounded));
        assert!(rounded.is_slow() && !DeviceLink::ASSUMED.is_slow());
        assert_eq!(
            [
                rounded.upload_seconds(5.4e9),
                rounded.download_seconds(25e9),
                DeviceLink::default().handover_seconds()
            ],
            [1.0, 1.0, 65e-6]
        );
    }
}
