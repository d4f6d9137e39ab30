# The echo server in Perl: a process for each connection; see echo_client.py for the protocol.
use strict;
use warnings;
use IO::Socket::INET;

$SIG{CHLD} = 'IGNORE';
my $listener = IO::Socket::INET->new(
    LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 64, ReuseAddr => 1,
) or die "listen: $!";
while (1) {
    my $connection = $listener->accept or next;
    my $child = fork // die "fork: $!";
    if ($child) { close $connection; next }
    close $listener;
    binmode $connection;
    $connection->autoflush(0);
    while (defined(my $line = <$connection>)) {
        my ($length, $block) = (int $line, '');
        while (length $block < $length) {
            read($connection, $block, $length - length $block, length $block)
                or die 'the end in a block';
        }
        print {$connection} $block;
        $connection->flush;
    }
    exit 0;
}
