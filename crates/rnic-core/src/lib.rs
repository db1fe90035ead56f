//! The sans-IO RDMA engine: queue pairs, memory keys, completion queues
