/* What two processes do without a reliable connection. */
#ifndef OTHERS_H
#define OTHERS_H

#include "rc.h"

/* A datagram with immediate data, whose completion and IP header are compared. */
void send_datagram(struct rc *rc, int oob);
void receive_datagram(struct rc *rc, int oob);
/* Messages over an unreliable connection. */
void send_unreliable(struct rc *rc, int oob);
void receive_unreliable(struct rc *rc, int oob);
/* A request of XRC to a queue pair that knows only RC. */
void send_xrc(struct rc *rc, int oob);
void receive_xrc(struct rc *rc, int oob);

#endif
