// SPDX-License-Identifier: Apache-2.0
// A client of HTTPS for a guest that has none: static, with OpenSSL as programs use it, which finds CAs and name servers where the guest has them.
//
//   tls NAME PORT HEADER...   asks for /, with these headers; prints who issued the server's certificate, and what came back; or why not
#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The last four bytes of the first name server's answer: there is one address. */
static int look_up(const char *name, struct in_addr *out)
{
    char line[256], server[64] = "";
    unsigned char q[512] = {0x12, 0x34, 1, 0, 0, 1}, *at = q + 12, answer[512];
    FILE *f = fopen("/etc/resolv.conf", "r");
    while (f && !server[0] && fgets(line, sizeof line, f))
        sscanf(line, " nameserver %63s", server);
    for (const char *p = name; *p; p += strcspn(p, ".") + (p[strcspn(p, ".")] == '.')) {
        *at++ = (unsigned char)strcspn(p, ".");
        memcpy(at, p, strcspn(p, "."));
        at += strcspn(p, ".");
    }
    memcpy(at, "\0\0\1\0\1", 5);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(53)};
    struct timeval limit = {5, 0};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    inet_aton(server, &to.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    sendto(fd, q, (size_t)(at + 5 - q), 0, (struct sockaddr *)&to, sizeof to);
    ssize_t n = recv(fd, answer, sizeof answer, 0);
    close(fd);
    if (n < 16 || answer[7] == 0)
        return -1;
    memcpy(out, answer + n - 4, 4);
    return 0;
}

static int dial(const char *name, int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (look_up(name, &to.sin_addr) < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) < 0)
        return -1;
    return fd;
}

int main(int argc, char **argv)
{
    char text[8192];
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    int port = 0, fd, n;
    if (argc < 3 || sscanf(argv[2], "%d", &port) != 1 || (fd = dial(argv[1], port)) < 0) {
        puts("no connection");
        return 1;
    }
    SSL_CTX_set_default_verify_paths(ctx);
    SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
    SSL_set1_host(ssl, argv[1]);
    SSL_set_tlsext_host_name(ssl, argv[1]);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) != 1) {
        long why = SSL_get_verify_result(ssl);
        puts(why ? X509_verify_cert_error_string(why) : "no handshake");
        return 1;
    }
    X509 *cert = SSL_get1_peer_certificate(ssl);
    X509_NAME_oneline(X509_get_issuer_name(cert), text, sizeof text);
    puts(text);
    n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n", argv[1], port);
    for (int i = 3; i < argc; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%s\r\n", argv[i]);
    n += snprintf(text + n, sizeof text - (size_t)n, "\r\n");
    SSL_write(ssl, text, n);
    while ((n = SSL_read(ssl, text, sizeof text)) > 0)
        fwrite(text, 1, (size_t)n, stdout);
    return 0;
}
