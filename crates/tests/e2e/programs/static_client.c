/* A statically linked client: connects, sends, and compares the answer.
 *
 * usage: static_client PORT     against exchange.py server
 *        static_client on FD    on an inherited connection
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SIZE 300000

static unsigned char out[SIZE], in[SIZE];

int main(int count, char **words) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    int inherits = count == 3 && strcmp(words[1], "on") == 0;
    int fd = inherits ? atoi(words[2]) : socket(AF_INET, SOCK_STREAM, 0);
    if (count != 2 + inherits || fd < 0) return 2;
    address.sin_port = htons((unsigned short)atoi(words[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (!inherits && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) return 3;
    for (long place = 0; place < SIZE; place++) out[place] = (place * 3 + place / 7) % 251;
    for (long done = 0; done < SIZE;) {
        ssize_t bytes = write(fd, out + done, SIZE - done);
        if (bytes <= 0) return 4;
        done += bytes;
    }
    for (long done = 0; done < SIZE;) {
        ssize_t bytes = read(fd, in + done, SIZE - done);
        if (bytes <= 0) return 5;
        done += bytes;
    }
    for (long place = 0; place < SIZE; place++)
        if (in[place] != (place * 5 + place / 7) % 251) return 6;
    shutdown(fd, SHUT_WR);
    if (read(fd, in, 1) != 0) return 7;
    puts("exchanged");
    return 0;
}
