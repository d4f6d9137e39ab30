-- Messages and notifications of weft's endpoints, as `weft capture --of endpoint:N` writes them
-- with the link type DLT_USER0 (147). For Wireshark and tshark:
--   tshark -X lua_script:weft.lua -r FILE -V
-- The header has 20 bytes, numbers are big endian; see "weft capture" in docs/observing.md.
-- Another use of DLT_USER0 on this machine takes precedence only if its script is loaded later.

local weft = Proto("weft", "weft message")

local contents = {
  [0] = "message", [1] = "message to a group", [2] = "notification", [3] = "unknown",
  [255] = "lost messages",
}
local sides = { [0] = "requester", [1] = "responder", [2] = "completer" }
local commands = {
  [0] = "put", [1] = "get", [2] = "immediate put", [3] = "notification put", [4] = "atomic",
}

local f = weft.fields
f.version = ProtoField.uint8("weft.version", "Version")
f.content = ProtoField.uint8("weft.content", "Content", base.DEC, contents)
f.source = ProtoField.uint16("weft.src", "Endpoint of the sender")
f.target = ProtoField.uint16("weft.dst", "Endpoint of the receiver")
f.tag = ProtoField.uint8("weft.tag", "Tag")
f.kind = ProtoField.uint8("weft.type", "Type of message")
f.number = ProtoField.uint64("weft.number", "Number in its direction")
f.group = ProtoField.uint8("weft.group", "Group")
f.side = ProtoField.uint8("weft.side", "Side", base.DEC, sides)
f.command = ProtoField.uint8("weft.command", "Command", base.DEC, commands)
f.class = ProtoField.uint8("weft.class", "Class")
f.length = ProtoField.uint8("weft.length", "Bytes of payload")
f.payload = ProtoField.bytes("weft.payload", "Payload")
f.operation = ProtoField.uint64("weft.operation", "Context of the operation", base.HEX)
f.key = ProtoField.uint64("weft.key", "Key of the memory", base.HEX)
f.offset = ProtoField.uint64("weft.offset", "Offset in the memory")
f.bytes = ProtoField.uint64("weft.bytes", "Bytes of the operation")
f.immediate = ProtoField.uint64("weft.immediate", "Immediate value", base.HEX)
f.lost = ProtoField.uint64("weft.lost", "Messages that are missing")
local short = ProtoExpert.new("weft.short", "The packet is shorter than its header says",
  expert.group.MALFORMED, expert.severity.ERROR)
weft.experts = { short }

local HEADER = 20
local NOTIFICATION = 40

function weft.dissector(buffer, pinfo, tree)
  pinfo.cols.protocol = "weft"
  local root = tree:add(weft, buffer())
  if buffer:len() < HEADER then
    root:add_proto_expert_info(short)
    return
  end
  local content = buffer(1, 1):uint()
  local source, target = buffer(2, 2):uint(), buffer(4, 2):uint()
  root:add(f.version, buffer(0, 1))
  root:add(f.content, buffer(1, 1))
  root:add(f.source, buffer(2, 2))
  root:add(f.target, buffer(4, 2))
  pinfo.cols.src = "endpoint " .. source
  pinfo.cols.dst = "endpoint " .. target
  local name = contents[content] or "unknown"
  if content == 255 then
    root:add(f.lost, buffer(8, 8))
    pinfo.cols.info = buffer(8, 8):uint64() .. " messages are missing here"
    return
  end
  local length = buffer(18, 1):uint()
  root:add(f.number, buffer(8, 8))
  root:add(f.length, buffer(18, 1))
  if buffer:len() < HEADER + length then
    root:add_proto_expert_info(short)
    return
  end
  if content == 2 and length == NOTIFICATION then
    root:add(f.class, buffer(6, 1))
    root:add(f.side, buffer(16, 1))
    root:add(f.command, buffer(17, 1))
    -- The words are as they lay in memory: little endian.
    for place, field in ipairs({ f.operation, f.key, f.offset, f.bytes, f.immediate }) do
      root:add_le(field, buffer(HEADER + (place - 1) * 8, 8))
    end
    local command = commands[buffer(17, 1):uint()] or "?"
    local side = sides[buffer(16, 1):uint()] or "?"
    pinfo.cols.info = name .. " of " .. command .. " at the " .. side
    return
  end
  root:add(f.tag, buffer(6, 1))
  root:add(f.kind, buffer(7, 1))
  if content == 1 then root:add(f.group, buffer(16, 1)) end
  if length > 0 then root:add(f.payload, buffer(HEADER, length)) end
  pinfo.cols.info = name .. ", tag " .. buffer(6, 1):uint() .. ", " .. length .. " bytes"
end

DissectorTable.get("wtap_encap"):add(wtap.USER0, weft)
