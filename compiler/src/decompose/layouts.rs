//! How the weights of a function lie, as decisions that are told and not asked for: functions that bind one weight have to agree on it, and no policy sees more
//! than one of them at a time.

use crate::decision::{Alternative, Decision};
use crate::layout::Layout;
use gristmill_uop::function::{Function, Storage};
use gristmill_uop::target::Target;

/// A line for each format and shape of weights, with what reading the weight once takes in its layout and in its file's.
pub fn told(function: &Function, layouts: &[(u32, Layout)], target: &Target) -> Vec<Decision> {
    let mut all: Vec<Decision> = vec![];
    for (slot, info) in function.slots.iter().enumerate() {
        let Storage::Packed(e) = info.storage else { continue };
        if e.elements == 1 {
            continue;
        }
        let layout = layouts.iter().find(|l| l.0 as usize == slot).map_or(Layout::File, |l| l.1);
        let read = |layout: Layout| {
            let name = match layout {
                Layout::File => "as in the file",
                Layout::Rows(_) => "rows interleaved",
                Layout::Planes => "rows as planes",
            };
            let bytes = layout.bytes(e, &info.dims)?;
            Some(Alternative::named(name, bytes as f64 / target.machine.bandwidth))
        };
        let mut options: Vec<Alternative> = [layout, Layout::File].into_iter().filter_map(read).collect();
        options.dedup_by(|a, b| a.name == b.name);
        let decision = Decision::new("layout", format!("{} {} {:?}", function.name, e.name, info.dims), options);
        if all.iter().all(|d| d.site != decision.site || d.options != decision.options) {
            all.push(decision);
        }
    }
    all
}
