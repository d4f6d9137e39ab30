# The echo client in Perl: plain system calls on one connection, buffered ones on the next.
use strict;
use warnings;
use IO::Socket::INET;

for my $buffered (0, 1) {
    my $connection = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ARGV[0])
        or die "connect: $!";
    binmode $connection;
    for my $size (1, 3000, 70_000, 1_500_000, 17, 4_000_000) {
        my $block = substr(join('', map { pack 'N', $_ * 2654435761 % 4294967296 } 0 .. $size / 4),
            0, $size);
        my $got = '';
        if ($buffered) {
            print {$connection} length($block) . "\n", $block;
            $connection->flush;
            read($connection, $got, $size) == $size or die 'an early end';
        } else {
            my ($all, $done) = (length($block) . "\n" . $block, 0);
            while ($done < length $all) {
                $done += syswrite($connection, $all, 65_537, $done) // die "write: $!";
            }
            while (length $got < $size) {
                sysread($connection, $got, $size - length $got, length $got) or die 'an early end';
            }
        }
        $got eq $block or die "other bytes of $size";
    }
    shutdown $connection, 1;
    sysread($connection, my $more, 1) and die 'something behind the end';
}
print "the same bytes came back\n";
