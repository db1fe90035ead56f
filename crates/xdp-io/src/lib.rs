//! Frame I/O for Linux: AF_XDP, AF_PACKET and UDP sockets with trains of segments
