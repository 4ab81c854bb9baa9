"""The section that holds a run against its plan."""

from hf_pretrain.planning.closed_loop import plan_stage
from hf_pretrain.planning.head_memory import head_memory
from hf_pretrain.reporting.run_data import RunData, TrainingLog
from hf_pretrain.reporting.sections import training_sections
from hf_pretrain.reporting.sections_plan import plan_section


CONFIG = {
    "model_type": "strata",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def run(with_plan=True):
    stage = {
        "kind": "pretrain",
        "data": {"train_tokens": 10_000, "global_batch_tokens": 1000, "steps": 10},
        "throughput": {"tokens_per_second": 500.0, "seconds": 20.0},
        "seconds": 40.0,
        "peak_memory_bytes": 6e8,
    }
    facts = {"stages": {"1_pretrain": stage}}
    if with_plan:
        facts["plans"] = {"1_pretrain": plan_stage(CONFIG, 10_000, 100, 1000)}
    lines = [{"step": 5, "loss": 6.0}, {"step": 10, "loss": 5.0}]
    return RunData(facts, [TrainingLog("1_pretrain", 0.0, lines, [5000.0, 10_000.0])])


def test_plan_and_measured_stand_side_by_side():
    (section,) = plan_section(run())
    rows = {row[0]: row[1:] for row in section.blocks[0].table.rows}
    assert rows["tokens"] == ["10.0k", "10.0k", "1.00"]
    assert rows["step time"] == ["-", "2.000 s", "-"]  # the peak of a CPU is not known, so no speed was planned
    assert rows["goodput"][1] == "0.500"
    assert rows["peak memory"][0].endswith("MB") and rows["peak memory"][1] == "-"
    assert rows["process memory"] == ["-", "600.0 MB", "-"]
    losses = [row[2] for row in section.blocks[1].table.rows]
    assert losses == ["-", "-", "6.000", "-", "5.000"]
    assert section.blocks[-1].kind == "note"


def test_head_bytes_are_in_the_training_section():
    def found(data):
        tables = [block.table for block in training_sections(data)[0].blocks if block.table]
        return [table for table in tables if table.columns[0].name == "output head"]

    data = run()
    assert found(data) == []
    data.facts["stages"]["1_pretrain"]["head_memory"] = head_memory(2048, 8192, 64, "float32").to_dict()
    (table,) = found(data)
    names = [column.name for column in table.columns[1:]]
    assert names == ["tokens", "vocabulary", "naive", "chunked", "Liger"]
    # three fp32 copies of the logits; one of them, the gradients and two of the input; 16 rows and the gradients
    assert table.rows == [["1_pretrain", "2,048", "8,192", "201.3 MB", "70.3 MB", "3.1 MB"]]


def test_a_run_without_a_plan_has_no_section():
    assert plan_section(run(with_plan=False))[0].blocks == []
