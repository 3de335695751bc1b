use super::*;
use gristmill_backend::{Options, open};
use gristmill_runtime::store::Store;

const LAYER: usize = 3;

/// Returns a cache of one layer without weights, in which steps wait for no copies.
fn cache(experts: usize, slots: usize, known: Option<&Vec<u32>>) -> ExpertCache {
    let device = open("cpu", &Options::default()).unwrap().device;
    let mut layer = CachedLayer::new(experts, known);
    layer.fill(slots).unwrap();
    ExpertCache {
        device,
        layers: BTreeMap::from([(LAYER, layer)]),
        stats: ExpertCacheStats::default(),
        link: DeviceLink::ASSUMED,
        costs: costs(0.0),
        key: Key::from_parts(["a test"]),
        unstored: 0,
    }
}

/// Returns costs of missed experts: experts without weights are copied if hand-overs take any time.
fn costs(handover: f64) -> MissCosts {
    let link = DeviceLink {
        handover: Some(handover),
        ..DeviceLink::ASSUMED
    };
    MissCosts::new(&link, 1e11)
}

#[test]
fn missed_experts_arrive_before_their_layer() {
    let mut cache = cache(8, 4, Some(&vec![9, 8, 7, 6, 1, 1, 1, 1]));
    cache.costs = costs(1e-6);
    let weights = [0.1, 0.2, 0.3, 0.4];
    let found = cache.look_up(LAYER, 2, (&[0, 5, 3, 1], &weights), &[1, 2]);
    let found = found.unwrap();
    // The expert in slot 2 was not chosen.
    assert_eq!((found.width, &found.hits[..]), (0, &[0, 2, 3, 1][..]));
    assert_eq!(found.hit_weights, weights);
    // Chosen experts are not replaced, so that one has no slot.
    let found = cache.look_up(LAYER, 5, (&[0, 1, 3, 5, 6], &[0.2; 5]), &[1, 2]);
    assert_eq!(found.unwrap().misses, [6]);
    let stats = cache.stats;
    assert_eq!((stats.hits, stats.misses, stats.waited), (7, 2, 1));
    assert_eq!(stats.copied, 1);
}

#[test]
fn chosen_experts_are_divided_by_place() {
    let mut cache = cache(8, 4, Some(&vec![9, 8, 7, 6, 1, 1, 1, 1]));
    let weights = [0.1, 0.2, 0.3, 0.4];
    let found = cache
        .look_up(LAYER, 2, (&[0, 5, 3, 1], &weights), &[1, 2])
        .unwrap();
    assert_eq!(found.hits, [0, 0, 3, 1]);
    assert_eq!(found.hit_weights, [0.1, 0.0, 0.3, 0.4]);
    // The second row is filled with an expert that the first one reads.
    assert_eq!((found.width, &found.misses[..]), (1, &[5, 5][..]));
    assert_eq!(found.miss_weights, [0.2, 0.0]);

    let found = cache
        .look_up(LAYER, 2, (&[4, 5, 3, 1], &weights), &[1, 2])
        .unwrap();
    assert_eq!(found.width, 2);
    assert_eq!(found.misses[..2], [4, 5]);
    assert_eq!(found.miss_weights, [0.1, 0.2, 0.0, 0.0]);

    let found = cache
        .look_up(LAYER, 2, (&[0, 1, 2, 3], &weights), &[1, 2])
        .unwrap();
    assert_eq!((found.width, found.misses.len()), (0, 0));
    assert_eq!((cache.stats.hits, cache.stats.misses), (9, 3));
}

#[test]
fn missed_experts_replace_those_that_are_used_less() {
    let mut cache = cache(6, 2, Some(&vec![5, 3, 0, 0, 0, 0]));
    let miss = |cache: &mut ExpertCache| {
        cache.look_up(LAYER, 1, (&[4], &[1.0]), &[1]).unwrap();
        cache.refill(Duration::from_secs(1)).unwrap();
        cache.layers[&LAYER].expert_in.clone()
    };
    for _ in 0..4 {
        assert_eq!(miss(&mut cache), [0, 1]);
    }
    assert_eq!(miss(&mut cache), [0, 4]);
    let found = cache.look_up(LAYER, 1, (&[1], &[1.0]), &[1]).unwrap();
    assert_eq!(found.misses, [1]);
    assert_eq!(cache.stats.copied, 1);
}

#[test]
fn old_uses_count_less() {
    let mut cache = cache(4, 1, Some(&vec![200, 0, 0, 0]));
    for _ in 0..400 {
        cache.look_up(LAYER, 1, (&[2], &[1.0]), &[1]).unwrap();
        cache.refill(Duration::from_secs(1)).unwrap();
    }
    let layer = &cache.layers[&LAYER];
    assert_eq!(layer.expert_in, [2]);
    assert!(layer.uses[0] < 100 && layer.uses[2] > layer.uses[0]);
}

#[test]
fn uses_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), 1 << 20).unwrap();
    let mut first = cache(6, 2, None);
    let key = first.key;
    first.uses().save(&store, &key);
    assert_eq!(ExpertUses::read(&store, &key), None, "nothing was used");
    first.observe(LAYER, [4, 4, 5].into_iter());
    first
        .look_up(LAYER, 2, (&[5, 0], &[0.5, 0.5]), &[1, 2])
        .unwrap();
    first.uses().save(&store, &key);
    let uses = ExpertUses::read(&store, &key).expect("stored uses").0;
    assert_eq!(uses, BTreeMap::from([(LAYER, vec![1, 0, 0, 0, 2, 2])]));
    let second = cache(6, 2, uses.get(&LAYER));
    assert_eq!(second.layers[&LAYER].expert_in, [4, 5]);
}

#[test]
fn experts_are_each_in_one_place() {
    let mut cache = cache(32, 9, None);
    let mut state = 7_u64;
    let mut next = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) % below
    };
    for _ in 0..500 {
        let first = next(8);
        let chosen: Vec<u32> = (0..12).map(|_| (first * next(5) % 32) as u32).collect();
        let weights: Vec<f32> = (0..12).map(|i| i as f32 + 1.0).collect();
        let held = cache.layers[&LAYER].expert_in.clone();
        let found = cache
            .look_up(LAYER, 4, (&chosen, &weights), &[2, 4])
            .unwrap();
        for (row, (chosen, weights)) in chosen.chunks(4).zip(weights.chunks(4)).enumerate() {
            let hits = 4 * row..4 * row + 4;
            let misses = found.width * row..found.width * (row + 1);
            let of_hits = found.hits[hits.clone()]
                .iter()
                .map(|&slot| held[slot as usize]);
            let of_hits = of_hits.zip(&found.hit_weights[hits]);
            let of_misses = found.misses[misses.clone()].iter().copied();
            let of_misses = of_misses.zip(&found.miss_weights[misses]);
            let mut all: Vec<(u32, f32)> = of_hits
                .chain(of_misses)
                .filter(|of| *of.1 > 0.0)
                .map(|(expert, &weight)| (expert, weight))
                .collect();
            all.sort_by(|a, b| a.1.total_cmp(&b.1));
            let wanted: Vec<(u32, f32)> = chosen
                .iter()
                .copied()
                .zip(weights.iter().copied())
                .collect();
            assert_eq!(all, wanted);
        }
        cache.refill(Duration::from_secs(1)).unwrap();
    }
    assert!(cache.stats.copied > 0);
}
