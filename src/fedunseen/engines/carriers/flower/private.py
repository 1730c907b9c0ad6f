"""All that ``fedunseen host`` and ``join`` use of Flower beyond its public interfaces; nothing else imports it.

Flower may change this in any release. ``tests/engines/test_flower_private.py`` has a test for each name, and
:func:`~fedunseen.engines.carriers.flower.check_private` refuses a version for which they were not run. The Flower app
(``app.py``) needs nothing of it.
"""

from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, TIMESTAMP_HEADER, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    NOOP_FEDERATION_ID,
    TaskType,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPushError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    generate_key_pairs,
    public_key_to_bytes,
    sign_message,
    verify_signature,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
