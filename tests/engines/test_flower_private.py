"""What `host` and `join` use of Flower's inner interfaces: a test for each name, so that a new release fails here."""

import inspect
import sys
from unittest.mock import Mock

import pytest

from fedunseen.core.errors import MissingDependencyError
from fedunseen.engines.carriers import flower

flwr = pytest.importorskip("flwr", reason="pip install 'fedunseen[flower]'")

from flwr.app import Array, ArrayRecord, RecordDict  # noqa: E402

from fedunseen.engines.carriers.flower import private  # noqa: E402
from fedunseen.engines.carriers.flower.content import record_of  # noqa: E402


def query(body=b"x" * 100):
    content = RecordDict({"body": ArrayRecord({"bytes": Array("uint8", (len(body),), "bytes", body)})})
    metadata = private.Metadata(
        run_id=1, message_id="", src_node_id=private.SUPERLINK_NODE_ID, dst_node_id=2, reply_to_message_id="",
        group_id="token", created_at=1.0, ttl=60.0, message_type="query",
    )  # fmt: skip
    return private.make_message(metadata=metadata, content=content)


def taken_apart():
    """A message as the pieces in which it travels."""
    message = query()
    with private.no_object_id_recompute():
        tree, objects = private.get_object_tree(message), private.get_all_nested_objects(message)
    return tree, {key: item.deflate() for key, item in objects.items()}


def put_together():
    tree, pieces = taken_apart()
    assert {node.object_id for node in private.iterate_object_tree(tree)} == pieces.keys()
    record = private.inflate_object_from_contents(record_of(tree).object_id, pieces)
    return isinstance(record, ArrayRecord) and record["bytes"].data == b"x" * 100


def read_array():
    (whole,) = (piece for piece in taken_apart()[1].values() if piece.startswith(b"Array "))
    kind, children, _ = private.get_object_head_values_from_object_content(whole)
    return kind == "Array" and len(children) == 1 and b"arraychunk_ids" in private.get_object_body(whole, Array)


def signed():
    key, public = private.generate_key_pairs()
    text = private.public_key_to_bytes(public)
    signature = private.sign_message(key, b"text")
    known = private.bytes_to_public_key(text)
    return private.verify_signature(known, b"text", signature) and not private.verify_signature(known, b"no", signature)


def over_the_wire():
    bare = private.remove_content_from_message(query())
    return private.message_from_proto(private.message_to_proto(bare)).metadata.group_id == "token"


def served():
    """Flower's application serves the paths of the Fleet interface, and its register of nodes is in memory."""
    from fedunseen.engines.carriers.flower.superlink import PATHS

    app = private.create_app()
    app.state.enable_supernode_auth = True
    state = app.state.linkstate_factory.state()
    key = private.public_key_to_bytes(private.generate_key_pairs()[1])
    node = state.create_node(private.NOOP_FLWR_AID, private.NOOP_ACCOUNT_NAME, key, 0)
    run = state.create_run(
        None, None, None, {}, private.NOOP_FEDERATION_ID, None, private.NOOP_FLWR_AID, private.TaskType.SERVER_APP
    )
    task = state.get_run_info(run_ids=[run])[0].primary_task_id
    state.claim_task(task)
    state.activate_task(task)
    state.acknowledge_task_heartbeat(task)
    assert state.get_message_res(message_ids=set(), run_id=run) == []
    state.finish_task(task, private.SubStatus.COMPLETED, "")
    state.cleanup_run(run)
    paths = app.openapi()["paths"]
    return state.get_node_id_by_public_key(key) == node and not PATHS - paths.keys()


def headers():
    names = (private.TIMESTAMP_HEADER, private.FLEET_HTTP_PUBLIC_KEY_HEADER, private.FLEET_HTTP_SIGNATURE_HEADER)
    return all(isinstance(name, str) and name for name in names)


def called():
    calls = ("RegisterNode", "ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages", "PushMessages")
    calls += ("PullObject", "PushObject")
    return all("request" in parameters(getattr(private.FleetHttpClient, call)) for call in calls)


def parameters(function):
    return inspect.signature(function).parameters.keys()


FIELDS = {  # of protobuf messages
    "ActivateNodeRequest": {"public_key", "heartbeat_interval"},
    "DeactivateNodeRequest": {"node_id"},
    "Node": {"node_id"},
    "PullMessagesRequest": {"node"},
    "PullMessagesResponse": {"messages_list", "message_object_trees"},
    "PushMessagesRequest": {"node", "messages_list", "message_object_trees"},
    "RegisterNodeFleetRequest": {"public_key"},
    "SendNodeHeartbeatRequest": {"node", "heartbeat_interval"},
}
PARAMETERS = {
    "FleetHttpClient": {"interceptors", "verify", "timeout"},
    "make_pull_object_fn_protobuf": 3,
    "make_push_object_fn_protobuf": 4,
    "pull_objects": {"max_time", "initial_backoff"},
    "push_objects": {"object_ids_to_push", "keep_objects"},
}
STATE = ("store_message_and_object_tree", "start_session", "store_object", "get_object", "deactivate_node")
CHECKS = {
    "FleetHttpClient": called,
    "LinkState": lambda: all(callable(getattr(private.LinkState, name)) for name in STATE),
    "ObjectPushError": lambda: issubclass(private.ObjectPushError, Exception),
    "ProtobufCall": lambda: private.ProtobufCall is not None,
    "ProtobufRequestContext": lambda: "request" in private.ProtobufRequestContext.__annotations__,
}
TOGETHER = {
    put_together: "make_message Metadata SUPERLINK_NODE_ID no_object_id_recompute get_object_tree "
    "get_all_nested_objects iterate_object_tree inflate_object_from_contents",
    read_array: "get_object_body get_object_head_values_from_object_content",
    signed: "generate_key_pairs public_key_to_bytes bytes_to_public_key sign_message verify_signature",
    over_the_wire: "remove_content_from_message message_from_proto message_to_proto",
    served: "create_app NOOP_FLWR_AID NOOP_ACCOUNT_NAME NOOP_FEDERATION_ID SubStatus TaskType",
    headers: "TIMESTAMP_HEADER FLEET_HTTP_PUBLIC_KEY_HEADER FLEET_HTTP_SIGNATURE_HEADER",
}
CHECKS |= {name: check for check, names in TOGETHER.items() for name in names.split()}


@pytest.mark.parametrize("name", [name for name in vars(private) if not name.startswith("_")])
def test_flower_still_has(name):
    found, changed = getattr(private, name), f"Flower changed {name}, which `host` and `join` use; the app does not"
    assert name in {*FIELDS, *PARAMETERS, *CHECKS}
    assert name not in FIELDS or FIELDS[name] <= set(found.DESCRIPTOR.fields_by_name), changed
    if name in PARAMETERS:
        wanted = PARAMETERS[name]
        assert wanted <= parameters(found) if isinstance(wanted, set) else len(parameters(found)) == wanted, changed
    assert name not in CHECKS or CHECKS[name](), changed


def test_another_version_is_refused_with_a_sentence(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.99.0")
    why = "1.99.0 is installed: pip install 'flwr<1.43', or use the Flower"
    with pytest.raises(MissingDependencyError, match=why):
        flower.check_private()


def test_a_missing_name_is_refused_with_a_sentence(monkeypatch):
    why = "cannot import name 'create_app'"
    monkeypatch.setattr("importlib.import_module", Mock(side_effect=ImportError(why)))
    with pytest.raises(MissingDependencyError, match=why):
        flower.check_private()


def test_a_flower_without_its_simulation_is_refused_with_a_sentence(monkeypatch):
    from flwr import simulation as flowers

    from fedunseen.engines.carriers.flower import simulation

    assert parameters(flowers.run_simulation) >= {"server_app", "client_app", "num_supernodes", "backend_config"}
    monkeypatch.setitem(sys.modules, "flwr.simulation", None)
    with pytest.raises(SystemExit, match="or simulate with the app"):
        simulation.main()
