use super::*;

#[test]
fn weights_are_where_their_layer_and_its_experts_are() {
    let away = LayerPlace {
        layer: 0,
        experts: 1,
    };
    let placement = Placement::new(vec![LayerPlace::default(), away]);
    assert_eq!(placement.weight("blk.1.ffn_up_exps.weight"), 1);
    assert_eq!(placement.weight("blk.1.ffn_down_exps.weight.lora_a"), 1);
    assert_eq!(
        placement.weight("adapter0.blk.1.ffn_up_exps.weight.lora_b"),
        1
    );
    assert_eq!(placement.weight("blk.1.ffn_gate_inp.weight"), 0);
    assert_eq!(placement.weight("blk.1.ffn_up_shexp.weight"), 0);
    assert_eq!(placement.weight("blk.0.ffn_up_exps.weight"), 0);
    assert_eq!(placement.weight("blk.2.ffn_up_exps.weight"), 0);
    assert_eq!(placement.weight("token_embd.weight"), 0);
    assert!(!placement.is_whole() && Placement::default().is_whole());
    let outer = Placement::default().with_outer(["token_embd.weight".into()], 2);
    assert_eq!(outer.weight("token_embd.weight"), 2);
    assert_eq!((outer.weight("output.weight"), outer.devices()), (0, 3));
    assert!(!outer.is_whole() && !outer.has_whole_layers());
}
