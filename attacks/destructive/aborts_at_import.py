"""Calls abort() at import, which would leave a core file."""
# stage: 2
# outcome: crashed
# says: SIGABRT
import os
import resource

resource.setrlimit(resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE)[1:] * 2)
os.abort()
