//! What an application and the soft-rnic daemon share: rings, doorbells and control messages
