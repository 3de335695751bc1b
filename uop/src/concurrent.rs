//! Work on threads, where there are threads: a WebAssembly module has only its own.

/// Maps `work` over the items, each but the first on a thread of its own; results are in order.
///
/// # Panics
/// If `work` panics.
pub fn map_each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if cfg!(target_family = "wasm") {
        return items.iter().map(work).collect();
    }
    let Some((first, others)) = items.split_first() else {
        return vec![];
    };
    let work = &work;
    std::thread::scope(|scope| {
        let spawn = |item| scope.spawn(move || work(item));
        let others: Vec<_> = others.iter().map(spawn).collect();
        let first = work(first);
        let others = others
            .into_iter()
            .map(|t| t.join().expect("work that ends"));
        std::iter::once(first).chain(others).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::map_each;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        assert_eq!(map_each(&[3, 1, 2], |n| n * n), [9, 1, 4]);
        assert!(map_each(&[], |n: &i32| *n).is_empty());
    }
}
