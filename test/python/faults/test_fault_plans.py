"""Fault plans: rules and their checks, TOML, and the plan that a log is replayed by."""

import dataclasses
import json
import pickle

import pytest
from torchwire.testing import Exponential, Fault, Normal, Plan, Rule, Uniform, read_logs
from torchwire.testing.message_types import GROUPS, TYPES
from torchwire.testing.phases import PHASES, PHASES_OF

# What each action needs to be a rule.
NEEDED = {
    "delay": {"seconds": 0.5},
    "pause": {"seconds": 0.5},
    "partition": {"seconds": 0.5, "between": ("worker0", "worker1")},
}

# ---- rules ----


def test_a_rule_takes_single_values_for_lists():
    rule = Rule("drop", messages="PYTHON_CALL", from_="worker0", to="ps*", nth=3)
    assert rule == Rule("drop", messages=["PYTHON_CALL"], from_=["worker0"], to=["ps*"], nth=[3])
    assert (rule.messages, rule.from_, rule.to, rule.nth) == (("PYTHON_CALL",), ("worker0",), ("ps*",), (3,))


def test_repr_is_the_call_that_makes_the_rule():
    rules = [
        Rule("drop"),
        Rule("delay", name="slow", messages="call", seconds=Uniform(0.1, 0.2), nth=[3, 1], probability=0.5),
        Rule("refuse", to="worker1"),
        Rule("corrupt", phase="mid_tensor", byte=0, at_least=1, at_most=2),
        Rule("partition", between=(["a"], ["b", "c"]), seconds=1, after=0.5),
    ]
    assert repr(rules[0]) == "Rule('drop')"
    assert repr(rules[2]) == "Rule('refuse', to=('worker1',))"
    for rule in rules:
        assert eval(repr(rule)) == rule
        assert pickle.loads(pickle.dumps(rule)) == rule and hash(rule) == hash(eval(repr(rule)))


def test_a_rule_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Rule("drop").probability = 0.5
    assert dataclasses.replace(Rule("drop", to="a"), probability=0.5) == Rule("drop", to="a", probability=0.5)


@pytest.mark.parametrize("action", PHASES_OF)
def test_each_action_is_possible_in_its_phases_only(action):
    needed = NEEDED.get(action, {})
    for phase in PHASES:
        if phase in PHASES_OF[action]:
            assert Rule(action, phase=phase, **needed).phase == phase
        else:
            with pytest.raises(ValueError, match=f"Rule\\('{action}'\\): phase"):
                Rule(action, phase=phase, **needed)


def test_the_usual_phase_is_that_of_the_request():
    assert Rule("drop").phase == "request"
    assert Rule("refuse").phase == "connect"
    assert Rule("partition", **NEEDED["partition"]).phase is None


@pytest.mark.parametrize("action", NEEDED)
def test_what_takes_time_needs_to_know_how_long(action):
    needed = {**NEEDED[action], "seconds": 0}
    with pytest.raises(ValueError, match=f"Rule\\('{action}'\\): seconds is missing"):
        Rule(action, **needed)


def test_the_groups_hold_every_type_once():
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(TYPES)
    assert Rule("drop", messages="fetch").to_interceptor(1)["messages"] == [
        TYPES["SCRIPT_RREF_FETCH_CALL"],
        TYPES["PYTHON_RREF_FETCH_CALL"],
    ]
    assert Rule("drop", messages=["call", "control", "fetch", "PYTHON_CALL"]).to_interceptor(1)["messages"] == [
        TYPES[name] for group in ("call", "control", "fetch") for name in GROUPS[group]
    ]


def test_pytorchs_name_for_gradients_stands_for_torchwires():
    assert Rule("drop", messages="BACKWARD_AUTOGRAD_REQ") == Rule("drop", messages="GRADIENTS")


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({"action": "dorp"}, ValueError, r"Rule: unknown action 'dorp' \(did you mean 'drop'\?\); known are drop, "),
        ({"action": 3}, TypeError, "Rule: action must be a name, got 3"),
        ({"messages": "PYTHON_RET"}, ValueError, 'it is a response; name the request, PYTHON_CALL, and phase="respon'),
        ({"messages": "python_call"}, ValueError, "No mapping to rpc::MessageType exists for python_call .*'PYTHON_CA"),
        ({"messages": ["calls"]}, ValueError, "exists for calls .did you mean 'call'"),
        ({"messages": [0x102]}, TypeError, "messages must hold names of message types, got 258"),
        ({"messages": 0x102}, TypeError, "messages must be a list of names, got 258"),
        ({"from_": "worker 0"}, ValueError, "from_: 'worker 0' can match no worker"),
        ({"to": [1]}, TypeError, "to must hold names of workers, got 1"),
        ({"phase": "in_fligth"}, ValueError, "unknown phase 'in_fligth' .did you mean 'in_flight'"),
        ({"phase": "connect"}, ValueError, "phase 'connect' is not one in which a drop is possible; .* refuse is"),
        ({"nth": 0}, ValueError, "nth must be at least 1, got 0; the first is 1"),
        ({"nth": [1.5]}, TypeError, "nth must be a whole number, got 1.5"),
        ({"probability": 1.5}, ValueError, "probability must be from 0 to 1, got 1.5"),
        ({"probability": True}, TypeError, "probability must be a number"),
        ({"at_most": 0}, ValueError, "at_most must be at least 1, got 0; leave the rule out"),
        ({"at_least": 3, "at_most": 2}, ValueError, "at_least is 3, which is more than at_most, 2"),
        ({"at_least": 3, "nth": [1, 2]}, ValueError, "at_least is 3, but nth allows only 2"),
        ({"each_message": 1}, TypeError, "each_message must be True or False"),
        ({"seconds": 1}, ValueError, "seconds has no meaning here; it belongs to delay and reorder and pause and part"),
        ({"byte": 3}, ValueError, "byte has no meaning here; it belongs to corrupt"),
        ({"between": ("a", "b")}, ValueError, "between has no meaning here; it belongs to partition"),
        ({"action": "delay", "seconds": -1}, ValueError, "seconds must be finite and not negative, got -1 seconds"),
        ({"action": "delay", "seconds": "1"}, TypeError, "seconds must be a number of seconds, Uniform"),
        ({"action": "delay", "seconds": {"normal": 1}}, ValueError, "normal takes mean and std, got .1"),
        ({"action": "refuse", "messages": "call"}, ValueError, "no meaning here: it applies to connections"),
        ({"action": "partition", "seconds": 1}, ValueError, "between is missing: name two sets"),
        ({"action": "partition", "seconds": 1, "between": ("a", "a")}, ValueError, "between: 'a' is in both sets"),
        ({"action": "partition", "seconds": 1, "between": ("a", ())}, ValueError, "both sets must have a worker"),
        ({"action": "partition", "seconds": 1, "between": "ab"}, ValueError, "between must be two sets of workers"),
        (
            {**NEEDED["partition"], "action": "partition", "to": "a"},
            ValueError,
            "to has no meaning here: it applies to all",
        ),
        ({"name": 'say "no"'}, ValueError, "name may have letters, digits"),
    ],
)
def test_a_bad_rule_is_refused_with_a_sentence(arguments, kind, sentence):
    with pytest.raises(kind, match=sentence):
        Rule(**{"action": "drop", **arguments})


def test_a_rule_in_an_error_has_its_name():
    with pytest.raises(ValueError, match=r"^Rule\('drop', name='lossy'\): probability must be"):
        Rule("drop", name="lossy", probability=2)


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (Uniform, (2, 1), "hi must be above 0 and not below lo, got lo=2 and hi=1"),
        (Uniform, (0, 0), "hi must be above 0"),
        (Normal, (-1, 1), "Normal: mean must be finite and not negative"),
        (Exponential, (0,), "Exponential: mean must be above 0"),
        (Exponential, (float("inf"),), "Exponential: mean must be finite"),
    ],
)
def test_a_bad_distribution_is_refused(kind, values, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(*values)


def test_the_interceptor_gets_times_as_shape_and_numbers():
    def seconds(value):
        return Rule("delay", seconds=value).to_interceptor(1)["seconds"]

    assert seconds(2) == {"shape": "fixed", "a": 2.0, "b": 0.0}
    assert seconds(Uniform(1, 2)) == {"shape": "uniform", "a": 1.0, "b": 2.0}
    assert seconds(Normal(1, 2)) == {"shape": "normal", "a": 1.0, "b": 2.0}
    assert seconds(Exponential(3)) == {"shape": "exponential", "a": 3.0, "b": 0.0}


def test_the_interceptor_gets_the_sides_of_a_partition_and_a_name_for_each_rule():
    rules = Plan([Rule("drop"), Rule("partition", between=("a", ["b", "c"]), seconds=1)], seed=3).to_interceptor(7)
    assert rules["revision"] == 7 and rules["seed"] == 3
    first, second = rules["rules"]
    assert (first["name"], second["name"]) == ("drop#1", "partition#2")
    assert (second["from"], second["to"]) == (["a"], ["b", "c"])


# ---- plans and TOML ----

TEXT = """
seed = 7

[[rule]]
action = "delay"
name = "slow"
messages = ["call", "RREF_USER_DELETE"]
from = "trainer*"
to = ["ps0", "ps1"]
seconds = { uniform = [0.001, 0.02] }
probability = 0.25
nth = [1, 2, 5]

[[rule]]
action = "refuse"
at_most = 2

[[rule]]
action = "pause"
phase = "in_flight"
seconds = { exponential = 0.5 }
each_message = true

[[rule]]
action = "partition"
between = [["a"], ["b", "c"]]
seconds = 0.5
after = 1
"""

PLAN = Plan(
    [
        Rule(
            "delay",
            name="slow",
            messages=["call", "RREF_USER_DELETE"],
            from_="trainer*",
            to=["ps0", "ps1"],
            seconds=Uniform(0.001, 0.02),
            probability=0.25,
            nth=[1, 2, 5],
        ),
        Rule("refuse", at_most=2),
        Rule("pause", phase="in_flight", seconds=Exponential(0.5), each_message=True),
        Rule("partition", between=("a", ["b", "c"]), seconds=0.5, after=1),
    ],
    seed=7,
)


def test_a_plan_is_read_from_text_and_from_files(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(TEXT)
    assert Plan.from_toml(TEXT) == Plan.from_toml(path) == Plan.from_toml(str(path)) == PLAN


def test_a_plan_comes_back_from_what_is_written_of_it():
    for plan in (PLAN, Plan(), Plan([Rule("drop", probability=1e-7), Rule("delay", seconds=Normal(1e-9, 3))])):
        assert Plan.from_toml(plan.to_toml()) == plan
        assert Plan.from_dict(plan.to_dict()) == plan
        assert eval(repr(plan)) == plan
        assert pickle.loads(pickle.dumps(plan)) == plan and hash(plan) == hash(eval(repr(plan)))


@pytest.mark.parametrize(
    ("text", "kind", "sentence"),
    [
        ("sed = 3", ValueError, "the plan has no 'sed' .did you mean 'seed'.*it takes seed, rule"),
        ("seed = -1", ValueError, "seed must be between 0 and"),
        ("seed = 1.5", TypeError, "seed must be a whole number, got 1.5"),
        ("[rule]\naction = 'drop'", TypeError, r"write each rule as \[\[rule\]\]"),
        ("a = = 3", ValueError, "the plan: not TOML: .*line 1"),
        ("[[rule]]\nphase = 'request'", ValueError, "the plan, rule 1: action is missing; choose one of drop, "),
        ("[[rule]]\naction='drop'\n[[rule]]\naction='drop'\nnht=3", ValueError, "rule 2: a rule has no 'nht' .*'nth'"),
        ("[[rule]]\naction='drop'\nnth=0", ValueError, r"the plan, rule 1: Rule\('drop'\): nth must be at least 1"),
    ],
)
def test_a_bad_plan_is_refused_with_a_sentence(text, kind, sentence):
    with pytest.raises(kind, match=sentence):
        Plan.from_toml(text)


def test_an_error_in_a_file_names_it(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("[[rule]]\naction='dorp'")
    with pytest.raises(ValueError, match="plan.toml, rule 1: Rule: unknown action 'dorp'"):
        Plan.from_toml(path)
    with pytest.raises(FileNotFoundError):
        Plan.from_toml("no such file.toml")


def test_a_plan_holds_rules_only():
    with pytest.raises(TypeError, match="rules must hold Rule, got 'drop'"):
        Plan(["drop"])
    with pytest.raises(TypeError, match="rules must be a list of Rule"):
        Plan("drop")


# ---- logs ----

ENTRY = {
    "time": 5.5,
    "worker": "worker0",
    "revision": 1,
    "rule": "slow",
    "action": "delay",
    "phase": "request",
    "from": "worker0",
    "to": "worker1",
    "message": TYPES["PYTHON_CALL"],
    "call_id": 77,
    "occurrence": 4,
    "seconds": 0.25,
    "byte": 0,
}


def fault(**changed):
    return Fault.from_entry({**ENTRY, **changed})


def test_a_fault_has_the_name_of_its_message():
    assert fault().message == "PYTHON_CALL"
    assert fault(action="refuse", phase="connect", message=0).message == ""
    assert fault().byte is None and fault(action="corrupt", byte=9).byte == 9
    assert str(fault()) == (
        "5.500000 worker0: delay (slow, revision 1) request of PYTHON_CALL 0x4d #4 worker0 -> worker1, 0.25 s"
    )


def test_logs_of_all_workers_are_read_in_order_of_time(tmp_path):
    def line(time, worker):
        return json.dumps({**ENTRY, "time": time, "worker": worker}) + "\n"

    (tmp_path / "worker0.jsonl").write_text(line(1.0, "worker0") + line(3.0, "worker0"))
    (tmp_path / "worker1.jsonl").write_text(line(2.0, "worker1") + '{"time": 4')  # killed while it wrote
    (tmp_path / "notes.txt").write_text("no log")
    assert [(each.time, each.worker) for each in read_logs(tmp_path)] == [
        (1.0, "worker0"),
        (2.0, "worker1"),
        (3.0, "worker0"),
    ]
    (tmp_path / "worker2.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="worker2.jsonl, line 1: not a fault"):
        read_logs(tmp_path)


def test_a_log_makes_exact_rules():
    log = [
        fault(),
        fault(occurrence=2),
        fault(occurrence=9, seconds=0.5),
        fault(action="drop", phase="response", seconds=0.0, rule="lossy", message=TYPES["GRADIENTS"]),
        fault(action="corrupt", byte=17, seconds=0.0, occurrence=1),
        fault(action="refuse", phase="connect", message=0, call_id=0, seconds=0.0, occurrence=1),
    ]
    here = {"from_": "worker0", "to": "worker1"}
    assert Plan.from_log(log) == Plan(
        [
            Rule("delay", name="slow", messages="PYTHON_CALL", nth=[2, 4], seconds=0.25, **here),
            Rule("delay", name="slow", messages="PYTHON_CALL", nth=9, seconds=0.5, **here),
            Rule("drop", name="lossy", messages="GRADIENTS", phase="response", nth=4, **here),
            Rule("corrupt", name="slow", messages="PYTHON_CALL", nth=1, byte=17, **here),
            Rule("refuse", name="slow", nth=1, **here),
        ]
    )


def test_what_a_partition_held_is_delayed_in_a_replay():
    log = [fault(action="partition", seconds=0.75), fault(action="partition", message=0, occurrence=0)]
    (rule,) = Plan.from_log(log).rules
    assert rule == Rule(
        "delay", name="slow", messages="PYTHON_CALL", from_="worker0", to="worker1", nth=4, seconds=0.75
    )


def test_what_was_delayed_and_then_held_is_delayed_for_both_in_a_replay():
    log = [fault(time=2.0, action="partition", seconds=0.5), fault(time=1.0, seconds=0.25)]
    (rule,) = Plan.from_log(log).rules
    assert (rule.action, rule.nth, rule.seconds) == ("delay", (4,), 0.75)


def test_a_drawn_time_of_zero_makes_a_rule():
    (rule,) = Plan.from_log([fault(seconds=0.0)]).rules
    assert 0 < rule.seconds < 1e-6


def test_a_log_of_several_plans_is_refused():
    with pytest.raises(ValueError, match=r"revisions 1, 2 .*\[fault for fault in log if fault.revision == 2\]"):
        Plan.from_log([fault(), fault(revision=2)])
    with pytest.raises(TypeError, match="a log must hold Fault"):
        Plan.from_log([ENTRY])
