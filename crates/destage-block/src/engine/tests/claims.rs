//! What the volume promises, one by one.
