# The echo server in Ruby: a thread for each connection; see echo_client.py for the protocol.
require 'socket'

listener = TCPServer.new('127.0.0.1', Integer(ARGV[0]))
loop do
  Thread.new(listener.accept) do |connection|
    while (line = connection.gets)
      length = Integer(line)
      connection.write(connection.read(length)) if length.positive?
    end
    connection.close
  end
end
