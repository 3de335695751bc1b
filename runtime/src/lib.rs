//! What a device is: buffers, programs, capture and replay, stores on disk.
