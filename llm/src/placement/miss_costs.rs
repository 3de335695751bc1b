//! Costs of chosen experts that are not in slots of the main device.

use gristmill_uop::link::DeviceLink;

/// Seconds that missed experts cost on the other device and by a copy to the main one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct MissCosts {
    handover: f64,
    /// Of a byte of an expert.
    computed: f64,
    copied: f64,
}

impl MissCosts {
    /// Returns the costs on a host with a memory bandwidth of `bandwidth` bytes per second.
    pub fn new(link: &DeviceLink, bandwidth: f64) -> MissCosts {
        MissCosts {
            handover: link.handover_seconds(),
            computed: bandwidth.recip(),
            copied: link.upload_seconds(1.0),
        }
    }
    /// Returns how many of `missed` experts of `bytes` bytes are copied before the layer goes on,
    /// while the other device computes the rest, for the least time of both. A copy that takes no
    /// less is left out.
    pub fn copies(&self, missed: usize, bytes: usize) -> usize {
        let (computed, copied) = (self.computed * bytes as f64, self.copied * bytes as f64);
        let seconds = |copies: usize| {
            let others = match missed - copies {
                0 => 0.0,
                others => self.handover + others as f64 * computed,
            };
            others.max(copies as f64 * copied)
        };
        let counts = 0..=missed;
        let least = counts.min_by(|&a, &b| seconds(a).total_cmp(&seconds(b)));
        least.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An expert of 1 MB takes 10 us on the cores, beside a hand-over of 50 us.
    fn copies(upload: f64, missed: usize) -> usize {
        let link = DeviceLink {
            upload: Some(upload),
            handover: Some(50e-6),
            ..DeviceLink::ASSUMED
        };
        MissCosts::new(&link, 1e11).copies(missed, 1_000_000)
    }

    #[test]
    fn a_step_waits_for_copies_that_take_less_than_the_cores() {
        // 20 us a copy.
        let fast = [0, 1, 2, 4, 8].map(|missed| copies(5e10, missed));
        assert_eq!(fast, [0, 1, 2, 3, 4]);
        // 100 us a copy.
        let slow = [1, 2, 8].map(|missed| copies(1e10, missed));
        assert_eq!(slow, [0, 0, 1]);
    }
}
