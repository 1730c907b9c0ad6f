"""What all tests share: a cache of their own, so that they neither read nor fill the user's."""

import os
import tempfile

os.environ["FEDUNSEEN_CACHE"] = tempfile.mkdtemp(prefix="fedunseen-tests-")
