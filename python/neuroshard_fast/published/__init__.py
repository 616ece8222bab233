"""Files of the published NeuroShard code and of Meta's public DLRM data, read as they are.

Sources: https://github.com/daochenzha/neuroshard, https://github.com/facebookresearch/dlrm_datasets;
docs/formats.md describes the formats.
"""

from neuroshard_fast.published.checkpoints import (
    CommunicationCheckpoint,
    ComputeCheckpoint,
    Layer,
    read_communication_checkpoint,
    read_compute_checkpoint,
)
from neuroshard_fast.published.cost_samples import (
    read_communication_samples,
    read_compute_samples,
    write_communication_samples,
    write_compute_samples,
)
from neuroshard_fast.published.index_dumps import read_index_dump, write_index_dump
from neuroshard_fast.published.table_configs import (
    PublishedTable,
    PublishedTables,
    encode_table_configs,
    read_table_configs,
    write_table_configs,
)
from neuroshard_fast.published.tasks import read_task_file, read_tasks, write_task_file

__all__ = [
    "CommunicationCheckpoint",
    "ComputeCheckpoint",
    "Layer",
    "PublishedTable",
    "PublishedTables",
    "encode_table_configs",
    "read_communication_checkpoint",
    "read_communication_samples",
    "read_compute_checkpoint",
    "read_compute_samples",
    "read_index_dump",
    "read_table_configs",
    "read_task_file",
    "read_tasks",
    "write_communication_samples",
    "write_compute_samples",
    "write_index_dump",
    "write_table_configs",
    "write_task_file",
]
