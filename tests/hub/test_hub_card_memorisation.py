from hf_pretrain.hub.card_memorisation import memorisation_text


def test_only_what_was_measured_is_said():
    rate = {"rate": 0.25, "passages": 8}
    probe = {"rates": {"3_anneal": {"once": rate}}, "convention": "exact"}
    facts = {"stages": {"6_evaluate": {"memorisation": probe}}, "averages": {"mean": {"members": [1, 2]}}}
    assert memorisation_text(facts) == (
        "Training text given back word for word by 3_anneal: 25.0% of 8 passages read once (exact). "
        "mean is the mean of the weights of 2 checkpoints."
    )
    assert memorisation_text({"stages": {}}) == ""
